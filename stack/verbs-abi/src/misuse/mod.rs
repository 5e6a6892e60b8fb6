//! Exports in any order with any arguments, by one thread or two: null pointers, objects of another kind, freed ones,
//! memory that is no object, and absurd sizes. Every call must come back, and a device must close once its objects are
//! gone. Octets choose the calls and the arguments: random ones in the test here, a fuzzer's in tests/fuzz.
//! AddressSanitizer sees what was touched (tests/sanitizers).

mod beside;
mod calls;
mod connections;

use crate::abi::*;
use crate::exports::*;
use crate::verbs::{completion, context, window, work_builder};
use libc::{c_int, c_void};
use std::any::type_name;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Octets of the program's memory that is no object of the library. The word in front of a pointer into it may be read.
const OCTETS: usize = 4096;
const _: () = assert!(OCTETS >= uwarp::MAX_INLINE);

/// How many objects of each type were made, by the name of the type.
pub type Made = BTreeMap<&'static str, usize>;

/// A device that exists and cannot be started: no call here needs the network.
const CONFIGURATION: &str = "address = \"10.0.0.1/24\"\nwait-for-peer = \"0s\"\n[device]\nkind = \"virtio-user\"\nsocket = \"/nowhere\"\n[limits]\nregions = 1000\n";

/// Makes the calls that the octets ask for, then destroys what is left.
///
/// # Panics
/// If a device does not close although its objects are gone.
pub fn run(octets: &[u8]) -> Made {
    configure();
    let mut program =
        Program { octets, objects: Vec::new(), made: Made::new(), functions: None, memory: Box::new([0; OCTETS / 8]) };
    // SAFETY: as a program does it.
    unsafe {
        let list = ibv_get_device_list(ptr::null_mut());
        assert!(!list.is_null() && !(*list).is_null());
        program.keep(*list);
        let context = ibv_open_device(*list);
        program.keep_context(context);
        ibv_free_device_list(list);
        program.functions = Functions::of(context);
        while !program.octets.is_empty() {
            program.call();
        }
        program.finish();
    }
    program.made
}

/// Names the configuration of this process, in a file without a name.
pub(crate) fn configure() {
    static FILE: OnceLock<File> = OnceLock::new();
    FILE.get_or_init(|| {
        let file = rustix::fs::memfd_create(c"uwarp.toml", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = File::from(file.expect("a file in memory"));
        file.write_all(CONFIGURATION.as_bytes()).expect("a file in memory takes octets");
        // SAFETY: nothing of this process that is written in C reads the environment now.
        unsafe { std::env::set_var("UWARP_CONFIG", format!("/proc/self/fd/{}", file.as_raw_fd())) };
        // rdma_cm's own device is open from here on, and not at an address that was another's.
        // SAFETY: the list has a device.
        unsafe {
            let list = rdma_get_devices(ptr::null_mut());
            do_not_wait((**list).async_fd);
            rdma_free_devices(list);
        }
        file
    });
}

/// The functions that headers call through structures. A program may call them with any pointer, too.
struct Functions {
    context: verbs_context,
    queue: ibv_cq_ex,
    builder: ibv_qp_ex,
}

impl Functions {
    /// # Safety
    /// The device is open.
    unsafe fn of(context: *mut ibv_context) -> Option<Functions> {
        // SAFETY: the context is in the structure whose offset is taken off.
        unsafe {
            let outer = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            let mut wanted = ibv_cq_init_attr_ex { cqe: 1, ..ibv_cq_init_attr_ex::default() };
            let queue = completion::create_cq_ex(context, &raw mut wanted);
            let mut builder = ibv_qp_ex::default();
            work_builder::set_functions(&mut builder);
            let functions = Functions { context: outer.read(), queue: queue.read(), builder };
            assert_eq!(ibv_destroy_cq(queue.cast()), 0);
            Some(functions)
        }
    }
}

/// A careless program: what it has, and the octets that say what it does next.
struct Program<'a> {
    octets: &'a [u8],
    /// All that was ever returned, freed or not, with the name of its type.
    objects: Vec<(&'static str, *mut c_void)>,
    made: Made,
    functions: Option<Functions>,
    memory: Box<[u64; OCTETS / 8]>,
}

impl Program<'_> {
    /// The next octet; 0 behind the last one.
    fn octet(&mut self) -> u8 {
        let (first, rest) = self.octets.split_first().unwrap_or((&0, &[]));
        self.octets = rest;
        *first
    }

    fn any(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.octet()))
    }

    fn below(&mut self, limit: u8) -> u8 {
        self.octet() % limit
    }

    fn coin(&mut self) -> bool {
        self.octet() & 1 == 1
    }

    /// A pointer, more often than not of the right kind.
    fn pointer<T>(&mut self) -> *mut T {
        match self.below(24) {
            0 => ptr::null_mut(),
            1 => self.memory.as_mut_ptr().wrapping_add(OCTETS / 16).cast(),
            2 => self.some_object("").wrapping_byte_add(1).cast(),
            3 => self.some_object("").cast(),
            _ => self.some_object(type_name::<T>()).cast(),
        }
    }

    /// One of the last few objects of a type, which often live, or one of the last of any.
    fn some_object(&mut self, name: &str) -> *mut c_void {
        let at = usize::from(self.octet());
        let likely: Vec<_> = self.objects.iter().rev().filter(|(of, _)| *of == name).take(12).collect();
        if !likely.is_empty() {
            return likely[at % likely.len()].1;
        }
        let recent = &self.objects[self.objects.len().saturating_sub(256)..];
        if recent.is_empty() { ptr::null_mut() } else { recent[at % recent.len()].1 }
    }

    /// The program's own structure with any contents, or null.
    fn filled<T>(&mut self, structure: &mut T) -> *mut T {
        if self.below(8) == 0 { ptr::null_mut() } else { structure }
    }

    fn number(&mut self) -> u32 {
        const NUMBERS: [u32; 11] = [0, 1, 2, 3, 16, 64, 255, 4096, 1 << 20, i32::MAX as u32, u32::MAX];
        let at = usize::from(self.below(12));
        NUMBERS.get(at).copied().unwrap_or_else(|| self.any() as u32)
    }

    fn small(&mut self) -> u32 {
        if self.below(4) == 0 { self.number() } else { self.below(40).into() }
    }

    fn size(&mut self) -> usize {
        const SIZES: [usize; 8] = [0, 1, 8, OCTETS, 1 << 40, usize::MAX / 2, usize::MAX - 7, usize::MAX];
        let at = usize::from(self.below(9));
        SIZES.get(at).copied().unwrap_or_else(|| self.any() as usize)
    }

    /// A part of the program's memory.
    fn part(&mut self) -> (*mut c_void, usize) {
        let length = usize::from(self.octet()) * 8;
        (self.memory.as_mut_ptr().cast(), length)
    }

    fn keep<T>(&mut self, object: *mut T) {
        if !object.is_null() {
            *self.made.entry(type_name::<T>()).or_default() += 1;
            self.objects.push((type_name::<T>(), object.cast()));
        }
    }

    /// Keeps an open device; nobody waits for its events.
    ///
    /// # Safety
    /// It is null, or a device that was just opened.
    unsafe fn keep_context(&mut self, context: *mut ibv_context) {
        // SAFETY: as the caller promises.
        if let Some(open) = unsafe { context.as_ref() } {
            do_not_wait(open.async_fd);
        }
        self.keep(context);
    }

    /// Keeps an identifier; nobody waits for the events of its channel, which may be one that no program has made. Its
    /// memory may have been a channel of the program's.
    ///
    /// # Safety
    /// It was just made.
    unsafe fn keep_identifier(&mut self, id: *mut rdma_cm_id) {
        // SAFETY: as the caller promises; the channel lives as long.
        unsafe { do_not_wait((*(*id).channel).fd) };
        self.keep(id);
    }

    /// Destroys what still lives, users first.
    ///
    /// # Safety
    /// As [`call`](Self::call).
    unsafe fn finish(&mut self) {
        // SAFETY: every pointer once came from the library.
        unsafe {
            self.each(|id: *mut rdma_cm_id| {
                rdma_destroy_qp(id);
                rdma_destroy_id(id);
            });
            self.each(|channel: *mut rdma_event_channel| rdma_destroy_event_channel(channel));
            self.each(|answer: *mut rdma_addrinfo| rdma_freeaddrinfo(answer));
            self.each(|qp: *mut ibv_qp| _ = ibv_destroy_qp(qp));
            self.each(|srq: *mut ibv_srq| _ = ibv_destroy_srq(srq));
            self.each(|mw: *mut ibv_mw| _ = window::dealloc_mw(mw));
            self.each(|mr: *mut ibv_mr| _ = ibv_dereg_mr(mr));
            self.each(|cq: *mut ibv_cq| _ = ibv_destroy_cq(cq));
            self.each(|channel: *mut ibv_comp_channel| _ = ibv_destroy_comp_channel(channel));
            self.each(|pd: *mut ibv_pd| _ = ibv_dealloc_pd(pd));
            self.each(|context: *mut ibv_context| {
                // It may have been closed before.
                let left = context::get(context).map_or(0, |open| open.objects.load(Ordering::Acquire));
                assert_eq!(left, 0, "objects of the device still count");
                assert!(matches!(ibv_close_device(context), 0 | libc::EINVAL));
            });
        }
    }

    fn each<T>(&self, with: impl Fn(*mut T)) {
        for (_, object) in self.objects.iter().filter(|(of, _)| *of == type_name::<T>()) {
            with(object.cast());
        }
    }
}

/// Lets calls that fetch an event fail where they would wait.
pub(crate) fn do_not_wait(fd: c_int) {
    // SAFETY: a call about a number.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Octets of one run, and how many runs there are; a long test has 50 times as many.
    const LENGTH: usize = 1 << 14;
    const RUNS: usize = 20;

    #[test]
    fn any_calls_with_any_arguments_come_back() {
        let seed = std::env::var("UWARP_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        eprintln!("UWARP_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut made = Made::new();
        for _ in 0..RUNS
            * if std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0") { 50 } else { 1 }
        {
            let octets: Vec<u8> = (0..LENGTH).map(|_| random.u8(..)).collect();
            for (name, count) in run(&octets) {
                *made.entry(name).or_default() += count;
            }
        }
        // Enough of the calls were right.
        for name in [
            "ibv_context",
            "ibv_pd",
            "ibv_mr",
            "ibv_mw",
            "ibv_comp_channel",
            "ibv_cq",
            "ibv_srq",
            "ibv_qp",
            "rdma_event_channel",
            "rdma_cm_id",
            "rdma_addrinfo",
        ] {
            let of_it = made.iter().filter(|(of, _)| of.ends_with(&format!("::{name}")));
            let made: usize = of_it.map(|(_, made)| made).sum();
            assert!(made > 20, "{made} of {name}");
        }
    }

    /// For the sanitizers, which do not run the fuzzer.
    #[test]
    fn the_calls_of_the_fuzzers_corpus_come_back() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/verbs_calls");
        let mut inputs = 0;
        for input in std::fs::read_dir(corpus).expect("the corpus is in the tree") {
            run(&std::fs::read(input.expect("a directory entry").path()).expect("an input can be read"));
            inputs += 1;
        }
        assert!(inputs > 0);
    }
}
