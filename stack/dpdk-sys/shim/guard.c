/*
 * Functions of libc that the vhost library calls on descriptors which a client shares. They take precedence over libc's,
 * as those of shim.c do, in programs that start the guard.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

/* Requests whose results were not taken yet. */
#define RESULTS 64

static const struct uwarp_guard *guard;
/* Signals eventfds; 0 where the kernel has no asynchronous I/O. */
static aio_context_t signals;
/* An empty file, to read from. */
static int nothing = -1;

int accept(int fd, struct sockaddr *address, socklen_t *length)
{
	const struct uwarp_guard *g = __atomic_load_n(&guard, __ATOMIC_ACQUIRE);

	if (g != NULL && address == NULL && g->is_guarded(fd))
		return g->accept(fd);
	return (int)syscall(SYS_accept, fd, address, length);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	const struct uwarp_guard *g = __atomic_load_n(&guard, __ATOMIC_ACQUIRE);

	if (g != NULL && g->is_guarded(fd))
		return g->receive(fd, message, flags);
	return syscall(SYS_recvmsg, fd, message, flags);
}

int uwarp_signal(int fd)
{
	char octet;
	struct iocb request, *requests = &request;
	struct io_event results[RESULTS];
	struct timespec at_once = { 0 };
	eventfd_t one = 1;
	int flags;

	/*
	 * A write to a full eventfd waits, unless its description says otherwise; the client shares that, and may change
	 * it at any time. What the kernel adds when a request completes never waits.
	 */
	memset(&request, 0, sizeof(request));
	request.aio_lio_opcode = IOCB_CMD_PREAD;
	request.aio_fildes = (uint32_t)nothing;
	request.aio_buf = (uintptr_t)&octet;
	request.aio_nbytes = sizeof(octet);
	request.aio_flags = IOCB_FLAG_RESFD;
	request.aio_resfd = (uint32_t)fd;
	for (int tries = 0; signals != 0 && tries < 3; tries++) {
		if (syscall(SYS_io_submit, signals, 1, &requests) == 1)
			return 0;
		if (errno != EAGAIN)
			return -1;
		syscall(SYS_io_getevents, signals, 0, RESULTS, results, &at_once);
	}
	/* Without that, a client that changes the flags between these two calls can make the second wait. */
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || (!(flags & O_NONBLOCK) && fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0))
		return -1;
	return write(fd, &one, sizeof(one)) == sizeof(one) ? 0 : -1;
}

int eventfd_write(int fd, eventfd_t value)
{
	if (__atomic_load_n(&guard, __ATOMIC_ACQUIRE) != NULL && value == 1)
		return uwarp_signal(fd);
	return write(fd, &value, sizeof(value)) == sizeof(value) ? 0 : -1;
}

int uwarp_guard_start(const struct uwarp_guard *started)
{
	/* Shared libraries are bound to the first definition in the program's search order. */
	if (dlsym(RTLD_DEFAULT, "recvmsg") != (void *)recvmsg || dlsym(RTLD_DEFAULT, "accept") != (void *)accept ||
	    dlsym(RTLD_DEFAULT, "eventfd_write") != (void *)eventfd_write || dlsym(RTLD_DEFAULT, "close") != (void *)close)
		return -1;
	nothing = memfd_create("uwarp-nothing", MFD_CLOEXEC);
	if (nothing < 0 || syscall(SYS_io_setup, RESULTS, &signals) != 0)
		signals = 0;
	__atomic_store_n(&guard, started, __ATOMIC_RELEASE);
	return 0;
}
