/*
 * rsockets behave as sockets do.
 *
 *   cc -o rsockets rsockets.c -lrdmacm -lpthread
 *   ./rsockets arguments ADDRESS  what wrong arguments and states answer, and what options do
 *   ./rsockets connect ADDRESS    outcomes of connecting, with and without waiting, and names
 *   ./rsockets halves ADDRESS     each direction ends by itself, and everything arrives before its end
 *   ./rsockets epoll ADDRESS      the number of an rsocket is a descriptor that epoll(7) takes
 *   ./rsockets poll ADDRESS       rpoll and rselect over rsockets and pipes, time limits, interruptions
 *   ./rsockets both ADDRESS       large transfers both ways at once, by threads that wait and by one that polls
 *   ./rsockets small ADDRESS      many small messages, in lists of pieces, looked at before they are read
 *   ./rsockets maps ADDRESS       writing into the peer's memory
 *   ./rsockets killed ADDRESS     the peer's process is killed
 *
 * Server and client are two processes: the one forks the other before its first call. Exit status 0 if everything was
 * as it has to be; otherwise a line on standard error says what was not.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#include "check.h"

#define PORT 7491
/* Nobody listens here. */
#define CLOSED_PORT 7499
#define LONG_MS 30000
#define BIG (24u << 20)

#define fails(call, number) check((errno = 0, (call)) == -1 && errno == (number))

static struct sockaddr_in address;
/* The server writes an octet when it listens, and the client one when the server may go on. */
static int to_client[2], to_server[2];
static pid_t server_process;

static void tell(int *pipe)
{
	check(write(pipe[1], "x", 1) == 1);
}

static void await(int *pipe)
{
	char octet;
	check(read(pipe[0], &octet, 1) == 1);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static struct sockaddr *at(int port)
{
	address.sin_port = htons(port);
	return (struct sockaddr *)&address;
}

static int new_rsocket(int flags)
{
	int rs = rsocket(AF_INET, SOCK_STREAM | flags, 0);
	check(rs >= 0);
	return rs;
}

static int listening(void)
{
	int rs = new_rsocket(0), one = 1;
	check(!rsetsockopt(rs, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	check(!rbind(rs, at(PORT), sizeof(address)));
	check(!rlisten(rs, 8));
	tell(to_client);
	return rs;
}

/* The server's end of the only connection. */
static int accepted(void)
{
	int listener = listening(), rs = raccept(listener, NULL, NULL);
	check(rs >= 0);
	check(!rclose(listener));
	return rs;
}

static int connected(void)
{
	int rs = new_rsocket(0);
	await(to_client);
	check(!rconnect(rs, at(PORT), sizeof(address)));
	return rs;
}

static int polled(int rs, int events, int limit)
{
	struct pollfd entry = { .fd = rs, .events = events };
	int count = rpoll(&entry, 1, limit);
	check(count >= 0 && count == (entry.revents != 0));
	return entry.revents;
}

static int option(int rs, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof(value);
	check(!rgetsockopt(rs, level, name, &value, &length) && length == sizeof(value));
	return value;
}

static uint8_t octet_at(size_t at, int seed)
{
	return (at * 2654435761u >> 13) + at / 251 + seed;
}

static void send_pattern(int rs, size_t count, int seed)
{
	static __thread uint8_t buffer[70000];
	size_t done = 0, step = 1;
	while (done < count) {
		size_t part = step > sizeof(buffer) ? sizeof(buffer) : step;
		if (part > count - done)
			part = count - done;
		for (size_t i = 0; i < part; i++)
			buffer[i] = octet_at(done + i, seed);
		check(rsend(rs, buffer, part, 0) == (ssize_t)part);
		done += part;
		step = step * 3 % 99991 + 1;
	}
}

static void receive_pattern(int rs, size_t count, int seed)
{
	static __thread uint8_t buffer[50000];
	for (size_t done = 0; done < count;) {
		ssize_t part = rrecv(rs, buffer, count - done < sizeof(buffer) ? count - done : sizeof(buffer), 0);
		check(part > 0);
		for (ssize_t i = 0; i < part; i++)
			check(buffer[i] == octet_at(done + i, seed));
		done += part;
	}
}

static void is_at_end(int rs)
{
	char octet;
	check(polled(rs, POLLIN, LONG_MS) & POLLIN);
	check(rrecv(rs, &octet, 1, 0) == 0 && rrecv(rs, &octet, 1, 0) == 0);
}

/* ---- arguments */

static void arguments_server(void)
{
	int rs = accepted();
	is_at_end(rs);
	check(!rclose(rs));
}

static void arguments_client(void)
{
	char octet = 0;
	struct sockaddr_in6 name;
	socklen_t length = sizeof(name);
	struct timeval time = { .tv_usec = 20000 };
	struct linger linger;
	fails(rsocket(AF_INET, SOCK_DGRAM, 0), EOPNOTSUPP);
	fails(rsocket(AF_INET6, SOCK_DGRAM, 0), EOPNOTSUPP);
	fails(rsocket(AF_INET, SOCK_SEQPACKET, 0), EOPNOTSUPP);
	fails(rsocket(AF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP);
	fails(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EOPNOTSUPP);

	int rs = new_rsocket(0);
	fails(rrecv(rs, &octet, 1, 0), ENOTCONN);
	fails(rsend(rs, &octet, 1, 0), ENOTCONN);
	fails(rshutdown(rs, SHUT_WR), ENOTCONN);
	fails(rshutdown(rs, 17), EINVAL);
	fails(rgetpeername(rs, (struct sockaddr *)&name, &length), ENOTCONN);
	fails(raccept(rs, NULL, NULL), EINVAL);
	fails(rbind(rs, NULL, 0), EINVAL);
	fails(rbind(rs, at(PORT), 3), EINVAL);
	fails(rconnect(rs, NULL, sizeof(address)), EINVAL);
	fails(riomap(rs, &octet, 1, PROT_WRITE, 0, -1), EINVAL);
	fails(rsetsockopt(rs, SOL_SOCKET, 12345, &octet, 1), EOPNOTSUPP);
	fails(rsetsockopt(rs, SOL_SOCKET, SO_RCVBUF, &octet, 1), EINVAL);
	fails(rsetsockopt(rs, SOL_SOCKET, SO_RCVBUF, NULL, 4), EFAULT);
	fails(rfcntl(rs, F_DUPFD, 0), EOPNOTSUPP);
	struct sockaddr_in other = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc0000201) };
	fails(rbind(rs, (struct sockaddr *)&other, sizeof(other)), EADDRNOTAVAIL);

	int value = 100000;
	check(!rsetsockopt(rs, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)));
	check(option(rs, SOL_SOCKET, SO_RCVBUF) == 200000 && option(rs, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
	value = 1;
	check(!rsetsockopt(rs, IPPROTO_TCP, TCP_NODELAY, &value, sizeof(value)));
	check(option(rs, IPPROTO_TCP, TCP_NODELAY) == 1 && option(rs, SOL_SOCKET, SO_KEEPALIVE) == 0);
	length = sizeof(linger);
	check(!rgetsockopt(rs, SOL_SOCKET, SO_LINGER, &linger, &length) && !linger.l_onoff);
	check(option(rs, SOL_RDMA, RDMA_SQSIZE) == 384);
	check(!rfcntl(rs, F_SETFL, O_NONBLOCK) && rfcntl(rs, F_GETFL) == (O_RDWR | O_NONBLOCK));
	check(!rfcntl(rs, F_SETFL, 0) && !rfcntl(rs, F_SETFD, FD_CLOEXEC) && rfcntl(rs, F_GETFD) == FD_CLOEXEC);
	check(!rclose(rs));
	fails(rclose(rs), EBADF);
	fails(rsend(rs, &octet, 1, 0), EBADF);
	fails(rrecv(-1, &octet, 1, 0), EBADF);
	fails(rgetsockopt(0, SOL_SOCKET, SO_ERROR, &value, &length), EBADF);

	int listener = new_rsocket(SOCK_NONBLOCK | SOCK_CLOEXEC);
	check(rfcntl(listener, F_GETFD) == FD_CLOEXEC);
	check(!rlisten(listener, 0) && !rlisten(listener, 5));
	fails(raccept(listener, NULL, NULL), EAGAIN);
	fails(rsend(listener, &octet, 1, 0), ENOTCONN);
	fails(rconnect(listener, at(PORT), sizeof(address)), EINVAL);
	length = sizeof(name);
	check(!rgetsockname(listener, (struct sockaddr *)&name, &length) && length == sizeof(struct sockaddr_in));
	/* Its port is another's no longer than it lives. */
	address.sin_port = ((struct sockaddr_in *)&name)->sin_port;
	rs = new_rsocket(0);
	fails(rbind(rs, (struct sockaddr *)&address, sizeof(address)), EADDRINUSE);
	check(!rclose(listener) && !rbind(rs, (struct sockaddr *)&address, sizeof(address)) && !rclose(rs));

	rs = connected();
	fails(rconnect(rs, at(CLOSED_PORT), sizeof(address)), EISCONN);
	check(!rconnect(rs, at(PORT), sizeof(address)));
	fails(rsendto(rs, &octet, 1, 0, at(PORT), sizeof(address)), EISCONN);
	fails(rsend(rs, NULL, 1, 0), EFAULT);
	fails(rsend(rs, &octet, 1, MSG_OOB), EOPNOTSUPP);
	fails(rwritev(rs, (struct iovec *)&octet, -1), EINVAL);
	fails(rlisten(rs, 1), EINVAL);
	check(rsend(rs, &octet, 0, 0) == 0);
	fails(rrecv(rs, &octet, 1, MSG_DONTWAIT), EAGAIN);
	check(!rsetsockopt(rs, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	double begun = now();
	fails(rrecv(rs, &octet, 1, 0), EAGAIN);
	check(now() - begun >= 0.02);
	fails(rsetsockopt(rs, SOL_RDMA, RDMA_SQSIZE, &value, sizeof(value)), EINVAL);
	check(!rclose(rs));
}

/* ---- connect */

static void connect_server(void)
{
	struct sockaddr_in peer;
	socklen_t length = sizeof(peer);
	int listener = listening();
	for (int i = 0; i < 2; i++) {
		int rs = raccept(listener, (struct sockaddr *)&peer, &length);
		check(rs >= 0 && peer.sin_family == AF_INET && peer.sin_addr.s_addr == address.sin_addr.s_addr);
		send_pattern(rs, 1000, i);
		check(!rclose(rs));
	}
	/* The backlog is one connection. More of them wait. */
	check(!rlisten(listener, 1));
	tell(to_client);
	await(to_server);
	for (int i = 0; i < 5; i++) {
		int rs = raccept(listener, NULL, NULL);
		receive_pattern(rs, 1000, 7);
		check(!rclose(rs));
	}
	check(!rclose(listener));
}

static void connect_client(void)
{
	struct sockaddr_in own, peer;
	socklen_t length = sizeof(own);
	int rs = new_rsocket(0);
	fails(rconnect(rs, at(CLOSED_PORT), sizeof(address)), ECONNREFUSED);
	/* It can be tried again. */
	await(to_client);
	check(!rconnect(rs, at(PORT), sizeof(address)));
	check(!rgetsockname(rs, (struct sockaddr *)&own, &length) && own.sin_port);
	check(!rgetpeername(rs, (struct sockaddr *)&peer, &length) && peer.sin_port == htons(PORT));
	receive_pattern(rs, 1000, 0);
	is_at_end(rs);
	check(!rclose(rs));

	rs = new_rsocket(SOCK_NONBLOCK);
	fails(rconnect(rs, at(CLOSED_PORT), sizeof(address)), EINPROGRESS);
	check(polled(rs, POLLOUT, LONG_MS) & POLLERR);
	check(option(rs, SOL_SOCKET, SO_ERROR) == ECONNREFUSED && option(rs, SOL_SOCKET, SO_ERROR) == 0);
	fails(rconnect(rs, at(PORT), sizeof(address)), EINPROGRESS);
	check(polled(rs, POLLOUT, LONG_MS) == POLLOUT);
	check(option(rs, SOL_SOCKET, SO_ERROR) == 0);
	check(!rfcntl(rs, F_SETFL, 0));
	receive_pattern(rs, 1000, 1);
	check(!rclose(rs));

	int many[5];
	await(to_client);
	for (int i = 0; i < 5; i++) {
		many[i] = new_rsocket(SOCK_NONBLOCK);
		fails(rconnect(many[i], at(PORT), sizeof(address)), EINPROGRESS);
	}
	tell(to_server);
	for (int i = 0; i < 5; i++) {
		check(polled(many[i], POLLOUT, LONG_MS) == POLLOUT);
		send_pattern(many[i], 1000, 7);
		check(!rclose(many[i]));
	}
}

/* ---- halves */

static void halves_server(void)
{
	char octet;
	int rs = accepted();
	receive_pattern(rs, 1000000, 1);
	is_at_end(rs);
	check(polled(rs, POLLIN | POLLOUT | POLLRDHUP, LONG_MS) == (POLLIN | POLLOUT | POLLRDHUP));
	send_pattern(rs, 300000, 2);
	check(!rshutdown(rs, SHUT_WR));
	fails(rsend(rs, "x", 1, 0), EPIPE);
	check(polled(rs, POLLIN, LONG_MS) & POLLHUP);
	check(!rclose(rs));
	/* An end without a word in the other direction. */
	rs = accepted();
	check(rrecv(rs, &octet, 1, 0) == 1);
	await(to_server);
	is_at_end(rs);
	fails(rsend(rs, "x", 1, 0), EPIPE);
	check(!rclose(rs));
}

static void halves_client(void)
{
	char buffer[2];
	int rs = connected();
	send_pattern(rs, 1000000, 1);
	check(!rshutdown(rs, SHUT_WR));
	fails(rsend(rs, "x", 1, 0), EPIPE);
	receive_pattern(rs, 300000, 2);
	is_at_end(rs);
	check(polled(rs, 0, LONG_MS) == POLLHUP);
	check(!rclose(rs));
	rs = connected();
	check(!rshutdown(rs, SHUT_RD));
	check(rrecv(rs, buffer, 1, 0) == 0);
	check(rsend(rs, "x", 1, 0) == 1);
	check(!rclose(rs));
	tell(to_server);
}

/* ---- epoll */

static int waited(int epoll, int limit)
{
	struct epoll_event event;
	int count = epoll_wait(epoll, &event, 1, limit);
	check(count >= 0);
	return count ? event.events : 0;
}

static int watching(int rs, int events)
{
	struct epoll_event event = { .events = events, .data.fd = rs };
	int epoll = epoll_create1(0);
	check(epoll >= 0 && !epoll_ctl(epoll, EPOLL_CTL_ADD, rs, &event));
	return epoll;
}

static void epoll_server(void)
{
	int listener = new_rsocket(SOCK_NONBLOCK), epoll = watching(listener, EPOLLIN);
	check(!rbind(listener, at(PORT), sizeof(address)) && !rlisten(listener, 4));
	check(waited(epoll, 0) == 0);
	tell(to_client);
	check(waited(epoll, LONG_MS) == EPOLLIN);
	int rs = raccept(listener, NULL, NULL);
	check(rs >= 0 && waited(epoll, 0) == 0);
	check(close(epoll) == 0 && !rclose(listener));
	check(!rfcntl(rs, F_SETFL, 0));
	await(to_server);
	check(rsend(rs, "0123456789", 10, 0) == 10);
	/* The client fills what there is room for. */
	await(to_server);
	static char room[4 << 20];
	ssize_t count, all = 0;
	while ((count = rrecv(rs, room, sizeof(room), 0)) > 0)
		all += count;
	check(count == 0 && all > 100000);
	check(!rclose(rs));
}

static void epoll_client(void)
{
	static char octets[100000];
	int rs = connected(), epoll = watching(rs, EPOLLIN), edge = watching(rs, EPOLLOUT | EPOLLET);
	check(waited(edge, LONG_MS) == EPOLLOUT && waited(edge, 0) == 0);
	check(waited(epoll, 50) == 0);
	tell(to_server);
	check(waited(epoll, LONG_MS) == EPOLLIN && waited(epoll, 0) == EPOLLIN);
	/* Only in part: it stays readable. */
	check(rrecv(rs, octets, 4, 0) == 4 && waited(epoll, 0) == EPOLLIN);
	check(rread(rs, octets, 100) == 6 && waited(epoll, 0) == 0);

	ssize_t count, all = 0;
	do {
		while ((count = rsend(rs, octets, sizeof(octets), MSG_DONTWAIT)) > 0)
			all += count;
		check(errno == EAGAIN);
		/* What is under way may make room yet. */
	} while (waited(edge, 200));
	check(all > 100000);
	tell(to_server);
	check(waited(edge, LONG_MS) == EPOLLOUT);
	check(!rshutdown(rs, SHUT_WR));
	check(waited(epoll, LONG_MS) & EPOLLIN);
	is_at_end(rs);
	check(!rclose(rs));
	check(close(epoll) == 0 && close(edge) == 0);
}

/* ---- poll */

static volatile int signals;

static void handler(int number)
{
	(void)number;
	signals++;
}

/* A signal comes in 100 ms, and every 100 ms until one is handled in a call. */
static void interrupt(int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	struct itimerval timer = { .it_value.tv_usec = 100000, .it_interval.tv_usec = 100000 };
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void calm(void)
{
	struct itimerval timer = { 0 };
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void *speak_late(void *pipe)
{
	while (signals < 3)
		usleep(1000);
	tell(pipe);
	return NULL;
}

static void poll_server(void)
{
	int rs = accepted();
	for (int i = 0; i < 2; i++) {
		await(to_server);
		check(rsend(rs, "y", 1, 0) == 1);
	}
	is_at_end(rs);
	check(!rclose(rs));
}

static void poll_client(void)
{
	char octet;
	int own[2], rs = connected();
	fd_set read, write;
	struct timeval limit = { .tv_sec = 20 };
	check(!pipe(own));
	struct pollfd entries[] = {
		{ .fd = own[0], .events = POLLIN }, { .fd = rs, .events = POLLIN }, { .fd = -1, .revents = 7 },
	};
	check(rpoll(entries, 3, 0) == 0 && entries[2].revents == 0);
	double begun = now();
	check(rpoll(entries, 3, 50) == 0 && now() - begun >= 0.05);
	check(rpoll(NULL, 0, 10) == 0);
	tell(own);
	check(rpoll(entries, 3, LONG_MS) == 1 && entries[0].revents == POLLIN && entries[1].revents == 0);
	await(own);
	tell(to_server);
	check(rpoll(entries, 3, LONG_MS) == 1 && entries[0].revents == 0 && entries[1].revents == POLLIN);
	tell(own);
	check(rpoll(entries, 3, LONG_MS) == 2);
	check(polled(rs, POLLOUT, LONG_MS) == POLLOUT && polled(987654, POLLIN, 0) == POLLNVAL);

	FD_ZERO(&read);
	FD_SET(rs, &read);
	FD_SET(own[0], &read);
	write = read;
	FD_CLR(own[0], &write);
	int most = (rs > own[0] ? rs : own[0]) + 1;
	check(rselect(most, &read, &write, NULL, &limit) == 3);
	check(FD_ISSET(rs, &read) && FD_ISSET(rs, &write) && FD_ISSET(own[0], &read));
	await(own);
	check(rrecv(rs, &octet, 1, 0) == 1 && octet == 'y');
	FD_CLR(own[0], &read);
	limit = (struct timeval){ .tv_usec = 1000 };
	check(rselect(most, &read, NULL, NULL, &limit) == 0 && !FD_ISSET(rs, &read));

	interrupt(0);
	fails(rpoll(entries, 2, -1), EINTR);
	fails(rrecv(rs, &octet, 1, 0), EINTR);
	fails(rrecv(rs, &octet, 1, MSG_WAITALL), EINTR);
	calm();
	/* With SA_RESTART the call goes on, as on a socket. */
	pthread_t thread;
	signals = 0;
	check(!pthread_create(&thread, NULL, speak_late, to_server));
	interrupt(SA_RESTART);
	check(rrecv(rs, &octet, 1, 0) == 1 && signals >= 3);
	calm();
	check(!pthread_join(thread, NULL));
	check(!rclose(rs));
}

/* ---- both */

static void *sender(void *rs)
{
	send_pattern((int)(intptr_t)rs, BIG, 5);
	return NULL;
}

/* Each side has a thread that sends while the other receives. */
static void both_ways(int rs)
{
	pthread_t thread;
	check(!pthread_create(&thread, NULL, sender, (void *)(intptr_t)rs));
	receive_pattern(rs, BIG, 5);
	check(!pthread_join(thread, NULL));
}

/* One thread, which never waits in a call of data. */
static void both_ways_polled(int rs)
{
	static uint8_t out[30000], in[30000];
	size_t sent = 0, received = 0;
	check(!rfcntl(rs, F_SETFL, O_NONBLOCK));
	while (sent < BIG || received < BIG) {
		int events = polled(rs, (sent < BIG ? POLLOUT : 0) | POLLIN, LONG_MS);
		check(events);
		if (events & POLLOUT) {
			size_t most = sizeof(out) < BIG - sent ? sizeof(out) : BIG - sent;
			for (size_t i = 0; i < most; i++)
				out[i] = octet_at(sent + i, 6);
			ssize_t count = rsend(rs, out, most, 0);
			check(count > 0);
			sent += count;
		}
		if (events & POLLIN) {
			ssize_t count = rrecv(rs, in, sizeof(in), 0);
			check(count > 0);
			for (ssize_t i = 0; i < count; i++)
				check(in[i] == octet_at(received + i, 6));
			received += count;
		}
	}
	check(!rfcntl(rs, F_SETFL, 0));
}

static void both_server(void)
{
	int rs = accepted();
	both_ways(rs);
	both_ways_polled(rs);
	check(!rshutdown(rs, SHUT_WR));
	is_at_end(rs);
	check(!rclose(rs));
}

static void both_client(void)
{
	int rs = connected();
	both_ways(rs);
	both_ways_polled(rs);
	check(!rshutdown(rs, SHUT_WR));
	is_at_end(rs);
	check(!rclose(rs));
}

/* ---- small */

#define SMALL 20000

/* Three pieces, 1 to 60 octets in all. */
static size_t pieces(struct iovec *list, uint8_t *memory, int turn)
{
	size_t lengths[] = { 1 + turn % 13, turn % 7 ? 0 : 3, turn % 44 }, all = 0;
	for (int i = 0; i < 3; i++) {
		list[i] = (struct iovec){ memory + all, lengths[i] };
		all += lengths[i];
	}
	return all;
}

static void small_server(void)
{
	uint8_t memory[64];
	int rs = accepted();
	size_t done = 0;
	for (int i = 0; i < SMALL; i++) {
		struct iovec list[3];
		size_t length = pieces(list, memory, i);
		if (i % 10 == 0) {
			check(rrecv(rs, memory, length, MSG_PEEK) > 0 && memory[0] == octet_at(done, 9));
			memset(memory, 0, sizeof(memory));
		}
		check(rrecv(rs, memory, length, MSG_WAITALL) == (ssize_t)length);
		for (size_t at = 0; at < length; at++)
			check(memory[at] == octet_at(done + at, 9));
		done += length;
	}
	/* Back and forth. */
	for (int i = 0; i < SMALL; i++) {
		uint32_t number;
		/* The end of a buffer may lie in between. */
		check(rrecv(rs, &number, sizeof(number), MSG_WAITALL) == sizeof(number) && number == (uint32_t)i);
		check(rwrite(rs, &number, sizeof(number)) == sizeof(number));
	}
	struct iovec list[] = { { memory, 2 }, { memory + 2, 5 } };
	struct msghdr message = { .msg_iov = list, .msg_iovlen = 2 };
	check(rrecvmsg(rs, &message, MSG_WAITALL) == 7 && !memcmp(memory, "sevenup", 7));
	check(rreadv(rs, list, 2) == 3 && !memcmp(memory, "end", 3));
	check(!rclose(rs));
}

static void small_client(void)
{
	uint8_t memory[64];
	int rs = connected();
	size_t done = 0;
	for (int i = 0; i < SMALL; i++) {
		struct iovec list[3];
		size_t length = pieces(list, memory, i);
		for (size_t at = 0; at < length; at++)
			memory[at] = octet_at(done + at, 9);
		check(rwritev(rs, list, 3) == (ssize_t)length);
		done += length;
	}
	for (int i = 0; i < SMALL; i++) {
		uint32_t number = i;
		check(rwrite(rs, &number, sizeof(number)) == sizeof(number));
		number = -1;
		check(rrecvfrom(rs, &number, sizeof(number), MSG_WAITALL, NULL, NULL) == sizeof(number));
		check(number == (uint32_t)i);
	}
	struct iovec list[] = { { "seven", 5 }, { "up", 2 } };
	struct msghdr message = { .msg_iov = list, .msg_iovlen = 2 };
	check(rsendmsg(rs, &message, 0) == 7);
	usleep(1000);
	check(rsendto(rs, "end", 3, 0, NULL, 0) == 3);
	is_at_end(rs);
	check(!rclose(rs));
}

/* ---- maps */

static uint8_t mapped[200000];

static void maps_server(void)
{
	int listener = new_rsocket(0), maps = 2;
	check(!rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof(maps)));
	check(!rbind(listener, at(PORT), sizeof(address)) && !rlisten(listener, 1));
	tell(to_client);
	int rs = raccept(listener, NULL, NULL);
	check(rs >= 0 && option(rs, SOL_RDMA, RDMA_IOMAPSIZE) == 2);
	/* The client says when its map is there. */
	receive_pattern(rs, 5, 1);
	static uint8_t octets[150000];
	for (size_t i = 0; i < sizeof(octets); i++)
		octets[i] = octet_at(i, 4);
	check(riowrite(rs, octets, sizeof(octets), 1000 + 30000, 0) == sizeof(octets));
	/* The map ends before that. */
	check(riowrite(rs, octets, 100, 1000 + sizeof(mapped) - 50, 0) == 50);
	check(riowrite(rs, octets, 100, 999, 0) == 0);
	send_pattern(rs, 5, 2);
	is_at_end(rs);
	check(!rclose(rs) && !rclose(listener));
}

static void maps_client(void)
{
	int rs = connected();
	fails(riomap(rs, mapped, sizeof(mapped), PROT_READ, 0, 0), EINVAL);
	check(riomap(rs, mapped, sizeof(mapped), PROT_WRITE, 0, 1000) == 1000);
	check(riomap(rs, mapped, 10, PROT_WRITE, 0, -1) == (off_t)(intptr_t)mapped);
	fails(riomap(rs, mapped, 11, PROT_WRITE, 0, 0), ENOMEM);
	check(riomap(rs, mapped, 11, PROT_NONE, 0, 0) == 0 && !riounmap(rs, mapped, 11));
	send_pattern(rs, 5, 1);
	receive_pattern(rs, 5, 2);
	for (size_t i = 0; i < 150000; i++)
		check(mapped[30000 + i] == octet_at(i, 4));
	check(mapped[sizeof(mapped) - 50] == octet_at(0, 4) && !mapped[29999] && !mapped[180000] && !mapped[0]);
	check(!riounmap(rs, mapped, sizeof(mapped)));
	fails(riounmap(rs, mapped, sizeof(mapped)), EINVAL);
	check(!rclose(rs));
}

/* ---- killed */

static void killed_server(void)
{
	int rs = accepted();
	send_pattern(rs, 1000, 1);
	pause();
	check(!rclose(rs));
}

static void killed_client(void)
{
	char octet;
	int status, rs = connected(), epoll = watching(rs, EPOLLIN);
	static uint8_t rest[1000];
	double begun = now();
	while (rrecv(rs, rest, sizeof(rest), MSG_PEEK) < (ssize_t)sizeof(rest))
		check(now() - begun < 20);
	receive_pattern(rs, 10, 1);
	check(!kill(server_process, SIGKILL) && waitpid(server_process, &status, 0) == server_process);
	server_process = 0;
	begun = now();
	/* What had come is still there. */
	check(rrecv(rs, rest, 990, MSG_WAITALL) == 990 && rest[989] == octet_at(999, 1));
	check(waited(epoll, LONG_MS) & EPOLLIN);
	ssize_t count = rrecv(rs, &octet, 1, 0);
	check(count == 0 || (count == -1 && errno == ECONNRESET));
	check(rsend(rs, &octet, 1, 0) == -1 && (errno == EPIPE || errno == ECONNRESET));
	check(rrecv(rs, &octet, 1, 0) == 0 && polled(rs, 0, 0) & POLLHUP);
	check(now() - begun < 20);
	check(!rclose(rs));
}

/* ---- all of them */

static const struct {
	const char *name;
	void (*server)(void), (*client)(void);
} tests[] = {
	{ "arguments", arguments_server, arguments_client }, { "connect", connect_server, connect_client },
	{ "halves", halves_server, halves_client },	     { "epoll", epoll_server, epoll_client },
	{ "poll", poll_server, poll_client },		     { "both", both_server, both_client },
	{ "small", small_server, small_client },	     { "maps", maps_server, maps_client },
	{ "killed", killed_server, killed_client },
};

int main(int count, char **words)
{
	check(count == 3);
	address.sin_family = AF_INET;
	check(inet_pton(AF_INET, words[2], &address.sin_addr) == 1);
	check(!pipe(to_client) && !pipe(to_server));
	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		if (strcmp(tests[i].name, words[1]))
			continue;
		server_process = fork();
		check(server_process >= 0);
		if (!server_process) {
			tests[i].server();
			return 0;
		}
		tests[i].client();
		int status = 0;
		if (server_process)
			check(waitpid(server_process, &status, 0) == server_process);
		check(status == 0);
		return 0;
	}
	check(!"a test of this name");
}
