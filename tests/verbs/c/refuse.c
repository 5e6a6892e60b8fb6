/*
 * Runs a program without namespaces and mounts, as Docker's default profile of seccomp has it for a container: unshare,
 * setns, mount and others are refused with EPERM, clone with a namespace, too, and there is no clone3.
 *
 *   cc -o refuse refuse.c
 *   ./refuse PROGRAM [ARGUMENT...]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OWN AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN AUDIT_ARCH_AARCH64
#endif

/* The flags of clone that make namespaces. */
#define NAMESPACES 0x7e020000

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER(what) BPF_STMT(BPF_RET | BPF_K, what)
#define REFUSE(call, number)                                                                                          \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), ANSWER(SECCOMP_RET_ERRNO | (number))

int main(int count, char **words)
{
	struct sock_filter filter[] = {
		LOAD(arch),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN, 1, 0),
		ANSWER(SECCOMP_RET_KILL_PROCESS),
		LOAD(nr),
		REFUSE(SYS_unshare, EPERM),
		REFUSE(SYS_setns, EPERM),
		REFUSE(SYS_mount, EPERM),
		REFUSE(SYS_umount2, EPERM),
		REFUSE(SYS_pivot_root, EPERM),
		REFUSE(SYS_fsopen, EPERM),
		REFUSE(SYS_open_tree, EPERM),
		REFUSE(SYS_move_mount, EPERM),
		REFUSE(SYS_clone3, ENOSYS),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
		LOAD(args[0]),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1),
		ANSWER(SECCOMP_RET_ERRNO | EPERM),
		ANSWER(SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	if (count < 2)
		return fprintf(stderr, "usage: refuse PROGRAM [ARGUMENT...]\n"), 2;
	/* An ordinary user may set a filter only so. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return perror("no filter"), 1;
	execvp(words[1], words + 1);
	return perror(words[1]), 1;
}
