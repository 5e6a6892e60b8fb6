#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_errno.h>
#include <rte_eth_vhost.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>
#include <rte_vhost.h>

#include "shim.h"

uint32_t *uwarp_lcore(void)
{
	return &RTE_PER_LCORE(_lcore_id);
}

int uwarp_cancellable(int cancellable)
{
	int before = PTHREAD_CANCEL_ENABLE;

	pthread_setcancelstate(cancellable ? PTHREAD_CANCEL_ENABLE : PTHREAD_CANCEL_DISABLE, &before);
	return before == PTHREAD_CANCEL_ENABLE;
}

int uwarp_errno(void)
{
	return rte_errno;
}

/* The af_packet driver of DPDK 22.11 reports its link as up, whatever happens to the interface. */
static int packet_interface_runs(uint16_t port)
{
	struct rte_eth_dev_info info;
	struct sockaddr_ll address;
	struct ifreq request;
	socklen_t length = sizeof(address);
	int descriptor;

	if (rte_eth_dev_info_get(port, &info) != 0 || info.driver_name == NULL ||
	    strcmp(info.driver_name, "net_af_packet") != 0)
		return 1;
	descriptor = uwarp_packet_socket(port, 0);
	if (descriptor < 0)
		return 1;
	memset(&request, 0, sizeof(request));
	if (getsockname(descriptor, (struct sockaddr *)&address, &length) != 0)
		return 0;
	/* Not the name that the device was opened by: it may have changed. */
	request.ifr_ifindex = address.sll_ifindex;
	return ioctl(descriptor, SIOCGIFNAME, &request) == 0 && ioctl(descriptor, SIOCGIFFLAGS, &request) == 0 &&
	       (request.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING);
}

int uwarp_link_up(uint16_t port, uint32_t *speed)
{
	struct rte_eth_link link;

	if (rte_eth_link_get_nowait(port, &link) != 0)
		return 0;
	*speed = link.link_speed;
	return link.link_status == RTE_ETH_LINK_UP && packet_interface_runs(port);
}

struct rte_mbuf *uwarp_mbuf_raw_alloc(struct rte_mempool *pool)
{
	return rte_mbuf_raw_alloc(pool);
}

void uwarp_mbuf_raw_free(struct rte_mbuf *mbuf)
{
	rte_mbuf_raw_free(mbuf);
}

void uwarp_mbuf_free_segment(struct rte_mbuf *mbuf)
{
	rte_pktmbuf_free_seg(mbuf);
}

void uwarp_mempool_cache_flush(struct rte_mempool *pool)
{
	rte_mempool_cache_flush(NULL, pool);
}

uint16_t uwarp_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, packets, count);
}

uint16_t uwarp_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, packets, count);
}

struct rte_mbuf *uwarp_mbuf_alloc(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

void uwarp_mbuf_free(struct rte_mbuf *mbuf)
{
	rte_pktmbuf_free(mbuf);
}

uint32_t uwarp_ring_drain(struct rte_ring *ring)
{
	void *object;
	uint32_t count = 0;

	while (rte_ring_dequeue(ring, &object) == 0) {
		rte_pktmbuf_free(object);
		count++;
	}
	return count;
}

uint64_t uwarp_ticks(void)
{
	return rte_rdtsc();
}

double uwarp_ticks_per_nanosecond(void)
{
	return (double)rte_get_tsc_hz() / 1e9;
}

uint64_t uwarp_time_rx_burst(uint16_t port, uint16_t queue, uint64_t rounds)
{
	struct rte_mbuf *packets[32];
	uint64_t start = rte_rdtsc(), i;
	uint32_t received = 0;

	for (i = 0; i < rounds; i++)
		received += rte_eth_rx_burst(port, queue, packets, 32);
	return received == 0 ? rte_rdtsc() - start : 0;
}

uint64_t uwarp_time_alloc_free(struct rte_mempool *pool, unsigned batch, uint64_t rounds)
{
	struct rte_mbuf *packets[64];
	uint64_t start = rte_rdtsc(), i;
	unsigned j, taken;

	for (i = 0; i < rounds; i++) {
		for (taken = 0; taken < batch && taken < 64; taken++) {
			packets[taken] = rte_pktmbuf_alloc(pool);
			if (packets[taken] == NULL)
				break;
		}
		for (j = 0; j < taken; j++)
			rte_pktmbuf_free(packets[j]);
	}
	return rte_rdtsc() - start;
}

/* ---- log ---- */

static uwarp_log_hook log_hook;

static ssize_t log_write(void *cookie, const char *text, size_t length)
{
	int level = rte_log_cur_msg_loglevel();

	(void)cookie;
	log_hook(level < 0 ? 0 : (uint32_t)level, text, length);
	return (ssize_t)length;
}

int uwarp_log_to(uwarp_log_hook hook, uint32_t level)
{
	static const cookie_io_functions_t functions = { .write = log_write };
	FILE *stream;

	log_hook = hook;
	stream = fopencookie(NULL, "w", functions);
	if (stream == NULL)
		return -1;
	/* Each message is one write, so that levels and lines do not mix. */
	setvbuf(stream, NULL, _IOLBF, 1024);
	rte_log_set_global_level(level);
	return rte_openlog_stream(stream);
}

/* ---- gate ---- */

static uint32_t gate_thread; /* 0: none */
static uwarp_gate_hook gate_close;
static uwarp_gate_hook gate_open;

void uwarp_gate_install(uint32_t interrupt_thread, uwarp_gate_hook close_hook, uwarp_gate_hook open_hook)
{
	gate_close = close_hook;
	gate_open = open_hook;
	__atomic_store_n(&gate_thread, interrupt_thread, __ATOMIC_RELEASE);
}

static int on_gate_thread(void)
{
	static __thread uint32_t own;
	uint32_t gated = __atomic_load_n(&gate_thread, __ATOMIC_ACQUIRE);

	if (gated == 0)
		return 0;
	if (own == 0)
		own = (uint32_t)syscall(SYS_gettid);
	return own == gated;
}

/*
 * Takes precedence over libc's function of this name, for the whole program. EAL's interrupt thread calls it after it
 * has handled a batch of events. When it returns the next batch, no burst may be inside a device whose memory those
 * events take away. epoll_pwait without a mask equals epoll_wait, including the cancellation point.
 */
int epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout)
{
	int count;

	if (on_gate_thread())
		gate_open();
	count = epoll_pwait(epfd, events, maxevents, timeout, NULL);
	if (count > 0 && on_gate_thread())
		gate_close();
	return count;
}

int uwarp_gate_interposed(void)
{
	Dl_info eal, here;

	/* DPDK in this very object, linked so that its own symbols come first: the linker has bound its calls. */
	if (dladdr((void *)rte_eal_init, &eal) && dladdr((void *)uwarp_gate_interposed, &here) && eal.dli_fbase == here.dli_fbase)
		return 1;
	/* Shared libraries are bound to the first definition in the program's search order. */
	return dlsym(RTLD_DEFAULT, "epoll_wait") == (void *)epoll_wait;
}

/* ---- descriptors of EAL's memory ---- */

#define SPARED_MAX 4096

static uint8_t spared[SPARED_MAX];
static __thread int sparing;

static int spare_segment(const struct rte_memseg_list *list, const struct rte_memseg *segment, void *argument)
{
	int fd;

	(void)argument;
	if (list->external)
		return 0;
	/* The walk holds the lock that the plain function would take. */
	fd = rte_memseg_get_fd_thread_unsafe(segment);
	if (fd >= 0 && fd < SPARED_MAX)
		__atomic_store_n(&spared[fd], 1, __ATOMIC_RELEASE);
	return 0;
}

void uwarp_spare_memory_descriptors(void)
{
	rte_memseg_walk(spare_segment, NULL);
}

void uwarp_sparing_begin(void)
{
	sparing++;
}

void uwarp_sparing_end(void)
{
	sparing--;
}

static uwarp_close_hook close_hook;

void uwarp_close_through(uwarp_close_hook hook)
{
	__atomic_store_n(&close_hook, hook, __ATOMIC_RELEASE);
}

/* ---- descriptors that a driver closes twice ---- */

#define PUT_OFF_MAX 256

static __thread int putting_off;
static __thread unsigned put_off_count;
static __thread int put_off[PUT_OFF_MAX];

/* Whether a descriptor is closed later. Without room it is closed at once. */
static int close_later(int fd)
{
	unsigned i;

	if (!putting_off || fd < 0)
		return 0;
	for (i = 0; i < put_off_count; i++) {
		if (put_off[i] == fd)
			return 1;
	}
	if (put_off_count == PUT_OFF_MAX)
		return 0;
	put_off[put_off_count++] = fd;
	return 1;
}

void uwarp_close_port(uint16_t port)
{
	unsigned i;

	putting_off = 1;
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	putting_off = 0;
	for (i = 0; i < put_off_count; i++)
		close(put_off[i]);
	put_off_count = 0;
}

/* Takes precedence over libc's, as epoll_wait above. */
int close(int fd)
{
	uwarp_close_hook hook = __atomic_load_n(&close_hook, __ATOMIC_ACQUIRE);

	if (close_later(fd))
		return 0;
	if (hook != NULL && hook(fd))
		return 0;
	if (fd >= 0 && fd < SPARED_MAX && __atomic_load_n(&spared[fd], __ATOMIC_ACQUIRE) && (sparing > 0 || on_gate_thread()))
		return 0;
	return (int)syscall(SYS_close, fd);
}

/*
 * Takes precedence over libc's, as epoll_wait above. If a memif server cannot greet a client because it has left again,
 * the driver closes and frees a channel that EAL still watches, and EAL ends the process. So on the interrupt thread a
 * message to a peer that has left counts as sent, and the end of the stream tells the driver.
 */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	ssize_t sent;
	size_t i;

	if (!on_gate_thread())
		return syscall(SYS_sendmsg, fd, message, flags);
	sent = syscall(SYS_sendmsg, fd, message, flags | MSG_NOSIGNAL);
	if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
		for (sent = 0, i = 0; i < message->msg_iovlen; i++)
			sent += (ssize_t)message->msg_iov[i].iov_len;
	}
	return sent;
}

/* A vhost that has said nothing for so long counts as gone. */
#define RECEIVE_LIMIT_MS 5000

static __thread int limited;

void uwarp_limit_receives(void)
{
	limited = 1;
}

/*
 * Takes precedence over libc's, as epoll_wait above. A virtio-user driver waits in it for its vhost's answers, without a
 * limit: on a thread that opens or closes a device, and on the interrupt thread, which keeps the gate closed meanwhile.
 * With any flag the driver looks at a descriptor that does not block.
 */
ssize_t recv(int fd, void *buffer, size_t length, int flags)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };

	if (flags == 0 && (limited || on_gate_thread()) && poll(&wanted, 1, RECEIVE_LIMIT_MS) == 0) {
		errno = EAGAIN;
		return -1;
	}
	return recvfrom(fd, buffer, length, flags, NULL, NULL);
}

/* ---- layout ---- */

void uwarp_layout_fill(struct uwarp_layout *l)
{
	*l = (struct uwarp_layout){
		.mempool_cache_size = offsetof(struct rte_mempool, cache_size),
		.mempool_local_cache = offsetof(struct rte_mempool, local_cache),
		.mempool_pool_data = offsetof(struct rte_mempool, pool_data),
		.mempool_size = offsetof(struct rte_mempool, size),
		.cache_size = sizeof(struct rte_mempool_cache),
		.cache_len = offsetof(struct rte_mempool_cache, len),
		.cache_flushthresh = offsetof(struct rte_mempool_cache, flushthresh),
		.cache_objs = offsetof(struct rte_mempool_cache, objs),
		.fp_ops_size = sizeof(struct rte_eth_fp_ops),
		.fp_ops_rx_burst = offsetof(struct rte_eth_fp_ops, rx_pkt_burst),
		.fp_ops_tx_burst = offsetof(struct rte_eth_fp_ops, tx_pkt_burst),
		.fp_ops_rxq = offsetof(struct rte_eth_fp_ops, rxq),
		.fp_ops_txq = offsetof(struct rte_eth_fp_ops, txq),
		.ring_prod_tail = offsetof(struct rte_ring, prod.tail),
		.ring_cons_tail = offsetof(struct rte_ring, cons.tail),
		.ring_mask = offsetof(struct rte_ring, mask),
	};
}

void uwarp_vhost_wake(const char *path)
{
	/* Later versions wake it themselves. */
#if RTE_VERSION < RTE_VERSION_NUM(24, 11, 0, 0)
	static const struct rte_vhost_device_ops none;

	if (rte_vhost_driver_register(path, RTE_VHOST_USER_CLIENT | RTE_VHOST_USER_NO_RECONNECT) != 0)
		return;
	/* A new connection is the one event of which it is notified. */
	if (rte_vhost_driver_callback_register(path, &none) == 0)
		rte_vhost_driver_start(path);
	rte_vhost_driver_unregister(path);
#else
	(void)path;
#endif
}

/* ---- announcing packets to a sleeping thread ---- */

/* Queue pair q of the front end is two rings: 2q, in which it receives, and 2q + 1, from which we receive. */
static uint16_t received_ring(uint16_t queue)
{
	return 2 * queue + 1;
}

int uwarp_vhost_peer(uint16_t port)
{
	return rte_eth_vhost_get_vid_from_port_id(port);
}

int uwarp_vhost_kick(int peer, uint16_t queue)
{
	struct rte_vhost_vring ring;

	return rte_vhost_get_vhost_vring(peer, received_ring(queue), &ring) == 0 ? ring.kickfd : -1;
}

int uwarp_vhost_announce(int peer, uint16_t queue, int on)
{
	return rte_vhost_enable_guest_notification(peer, received_ring(queue), on);
}

int uwarp_packet_socket(uint16_t port, uint16_t queue)
{
	/* The driver has no function for it, but its queues begin with the socket. The kernel says whether that is right. */
	const int *first = rte_eth_fp_ops[port].rxq.data[queue];
	int domain = 0;
	socklen_t length = sizeof(domain);

	if (first == NULL || getsockopt(*first, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_PACKET)
		return -1;
	return *first;
}

#ifdef UWARP_STATIC
#include "numa.c"
#endif
