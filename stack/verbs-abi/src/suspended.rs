//! A call of the library that a signal's handler has interrupted, and that has to end before the process can: while it
//! turns the engine, nobody else can, and the handler runs on its stack.
//!
//! The handler has called exit(3) and never returns. So the call goes on as if it had: the part of the stack below it
//! is put aside, the kernel restores its registers from the signal's frame, and the address to which it would return
//! into the program is replaced by one from which the exit goes on.

use libc::{c_int, c_void, ucontext_t};
use std::arch::{asm, naked_asm};

/// Lets the call go on to its end. No signal of the program interrupts it again. False if its frames are not found;
/// then nothing has happened.
///
/// # Safety
/// The calling thread runs a handler that never returns, and that has interrupted a call of this library which does not
/// wait for anything.
pub(crate) unsafe fn finish() -> bool {
    let Some(Interrupted { context, stack_pointer, return_slot }) = find() else { return false };
    if has_shadow_stack() {
        return false;
    }
    let here = (&raw const context).addr();
    // A handler on a stack of its own leaves that of the call alone.
    let beside = stack_pointer.checked_sub(here).filter(|distance| *distance < MOST_STACK && !is_on_own_stack(context));
    let mut copy = vec![0u8; beside.map_or(0, |distance| distance + OWN_FRAMES)];
    let high = if beside.is_some() { stack_pointer - RED_ZONE } else { 0 };
    uwarp::with_signals_blocked(|| {
        // SAFETY: the frame and the slot are what `find` says. What the call overwrites is put back, so this frame is
        // as it was when `suspend` returns, and so are those of its callers.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), (&raw mut (*context).uc_sigmask).cast());
            BACK.copy = copy.as_mut_ptr();
            return_slot.write(resume as *const () as usize);
            suspend(context.cast(), high);
        }
    });
    true
}

/// More is between a handler and what it has interrupted only if their stacks differ.
const MOST_STACK: usize = 1 << 20;
/// Room for the frames between [`finish`] and the end of [`suspend`].
const OWN_FRAMES: usize = 4096;
/// Octets below its stack pointer that a function may use. They belong to the interrupted call.
const RED_ZONE: usize = 128;

/// The call.
struct Interrupted {
    /// What the kernel restores when the handler returns.
    context: *mut ucontext_t,
    stack_pointer: usize,
    /// Where the address lies to which the library returns.
    return_slot: *mut usize,
}

/// What [`resume`] needs.
#[repr(C)]
struct Back {
    stack_pointer: usize,
    copy: *mut u8,
    length: usize,
}
static mut BACK: Back = Back { stack_pointer: 0, copy: std::ptr::null_mut(), length: 0 };

/// Copies the stack from here up to `high`, and restores what the signal has interrupted. Returns by [`resume`].
#[unsafe(naked)]
unsafe extern "C" fn suspend(context: *mut c_void, high: usize) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov rdx, rdi",
        "lea rax, [rip + {back}]",
        "mov [rax], rsp",
        "mov rdi, [rax + 8]",
        "mov rcx, rsi",
        "mov rsi, rsp",
        "sub rcx, rsp",
        "jae 2f",
        "xor ecx, ecx",
        "2:",
        "mov [rax + 16], rcx",
        "cld",
        "rep movsb",
        // As the C library's own code behind a handler: rt_sigreturn(2), with the context at the top of the stack.
        "mov rsp, rdx",
        "mov eax, 15",
        "syscall",
        "ud2",
        back = sym BACK,
    )
}

/// What the interrupted call returns to.
#[unsafe(naked)]
unsafe extern "C" fn resume() {
    naked_asm!(
        "lea rax, [rip + {back}]",
        "mov rsp, [rax]",
        "mov rdi, rsp",
        "mov rsi, [rax + 8]",
        "mov rcx, [rax + 16]",
        "cld",
        "rep movsb",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        back = sym BACK,
    )
}

/// Whether the processor checks return addresses, which are not where it expects them then.
fn has_shadow_stack() -> bool {
    let pointer: usize;
    // SAFETY: RDSSPQ RAX, which does nothing without shadow stacks.
    unsafe { asm!(".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8", inout("rax") 0usize => pointer, options(nomem, nostack)) };
    pointer != 0
}

/// Whether the handler runs on the stack of sigaltstack(2).
fn is_on_own_stack(context: *mut ucontext_t) -> bool {
    let here = (&raw const context).addr();
    // SAFETY: the signal's frame.
    let own = unsafe { (*context).uc_stack };
    own.ss_flags & libc::SS_DISABLE == 0 && here.wrapping_sub(own.ss_sp.addr()) < own.ss_size
}

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, walk: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(frame: *mut c_void, is_interrupted: *mut c_int) -> usize;
    /// The stack pointer of the frame.
    fn _Unwind_GetCFA(frame: *mut c_void) -> usize;
}
const NEXT: c_int = 0;
const ENOUGH: c_int = 4;

/// A walk up the stack.
#[derive(Default)]
struct Walk {
    /// The stack pointer of the last frame. That of the code behind a handler points to what the kernel restores.
    last: usize,
    /// Of the interrupted frame: the context, and the stack pointer.
    interrupted: Option<(usize, usize)>,
    /// A frame of the library was there since.
    is_within: bool,
    found: Option<Interrupted>,
}

fn find() -> Option<Interrupted> {
    let mut walk = Walk::default();
    // SAFETY: the walk lives as long as the call.
    unsafe { _Unwind_Backtrace(look, (&raw mut walk).cast()) };
    walk.found
}

extern "C" fn look(frame: *mut c_void, walk: *mut c_void) -> c_int {
    let mut is_interrupted = 0;
    // SAFETY: the frame that the unwinder shows, and the walk of `find`.
    let (walk, address, stack_pointer) = unsafe {
        let address = _Unwind_GetIPInfo(frame, &raw mut is_interrupted);
        (&mut *walk.cast::<Walk>(), address, _Unwind_GetCFA(frame))
    };
    if is_interrupted != 0 {
        let context: *mut ucontext_t = std::ptr::with_exposed_provenance_mut(walk.last);
        // SAFETY: the unwinder has found the interrupted frame by it.
        let registers = unsafe { (*context).uc_mcontext.gregs };
        let [rip, rsp] = [libc::REG_RIP, libc::REG_RSP].map(|register| registers[register as usize] as usize);
        walk.interrupted = (rip == address && rsp == stack_pointer).then_some((walk.last, stack_pointer));
        walk.is_within = false;
    }
    walk.last = stack_pointer;
    let Some((context, interrupted)) = walk.interrupted else { return NEXT };
    if is_own_code(address) {
        walk.is_within = true;
    } else if walk.is_within {
        let return_slot: *mut usize = std::ptr::with_exposed_provenance_mut(stack_pointer - size_of::<usize>());
        // SAFETY: a call puts the address to which it returns there, and nobody else writes to this stack.
        if unsafe { return_slot.read() } == address {
            let context = std::ptr::with_exposed_provenance_mut(context);
            walk.found = Some(Interrupted { context, stack_pointer: interrupted, return_slot });
        }
        return ENOUGH;
    }
    NEXT
}

/// Whether an address belongs to this library.
fn is_own_code(address: usize) -> bool {
    let object = |address: *const c_void| {
        // SAFETY: a structure on the stack.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            (libc::dladdr(address, &raw mut info) != 0).then_some(info.dli_fbase)
        }
    };
    object(std::ptr::without_provenance(address)).is_some_and(|own| object(find as *const c_void) == Some(own))
}
