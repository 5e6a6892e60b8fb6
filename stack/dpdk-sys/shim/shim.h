/* Callable versions of inline functions and thread-local variables. */
#ifndef UWARP_SHIM_H
#define UWARP_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct rte_mempool;
struct rte_mbuf;
struct rte_ring;

/* Where the calling thread's lcore number is. */
uint32_t *uwarp_lcore(void);
/* Of the calling thread. */
int uwarp_errno(void);
/* Lets the calling thread be cancelled or not; whether it could be before. */
int uwarp_cancellable(int cancellable);

/* Whether the link is up, and its speed in Mbit/s (untouched if the device cannot say). In C, since DPDK 24.11 has the fields
 * in an anonymous union. */
int uwarp_link_up(uint16_t port, uint32_t *speed);

/* Slow paths: an empty or full cache, a thread without cache, a buffer that is not plain. */
struct rte_mbuf *uwarp_mbuf_raw_alloc(struct rte_mempool *pool);
void uwarp_mbuf_raw_free(struct rte_mbuf *mbuf);
void uwarp_mbuf_free_segment(struct rte_mbuf *mbuf);
/* Empties the calling thread's cache of the pool into the pool. */
void uwarp_mempool_cache_flush(struct rte_mempool *pool);

/* The inline functions, out of line: the reference for the ports to Rust. */
uint16_t uwarp_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count);
uint16_t uwarp_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count);
struct rte_mbuf *uwarp_mbuf_alloc(struct rte_mempool *pool);
void uwarp_mbuf_free(struct rte_mbuf *mbuf);
uint32_t uwarp_ring_drain(struct rte_ring *ring);

/* Loops over the inline functions, for measuring; they return the time stamp counter's ticks. */
uint64_t uwarp_time_rx_burst(uint16_t port, uint16_t queue, uint64_t rounds);
uint64_t uwarp_time_alloc_free(struct rte_mempool *pool, unsigned batch, uint64_t rounds);
uint64_t uwarp_ticks(void);
double uwarp_ticks_per_nanosecond(void);

/* DPDK's log, line by line: level (1 emergency .. 8 debug), text, length in octets. */
typedef void (*uwarp_log_hook)(uint32_t level, const char *text, size_t length);
int uwarp_log_to(uwarp_log_hook hook, uint32_t level);

/* The gate around EAL's interrupt thread: `close` is called on it when events arrive, before they are handled, and
 * `open` after they have been handled. */
typedef void (*uwarp_gate_hook)(void);
void uwarp_gate_install(uint32_t interrupt_thread, uwarp_gate_hook close, uwarp_gate_hook open);
/* Whether EAL's library calls the epoll_wait of this program: without it there is no gate. */
int uwarp_gate_interposed(void);

/* A zero-copy memif client closes EAL's own memory descriptors when it connects or disconnects, and then cannot reconnect.
 * Calls of close on the interrupt thread, and between `begin` and `end` on any other thread, leave those open. */
void uwarp_spare_memory_descriptors(void);
void uwarp_sparing_begin(void);
void uwarp_sparing_end(void);

/* Stops and closes a port. A virtio-user driver that has interrupts closes their eventfds twice, and between the two calls
 * another thread might get the number. So what drivers close meanwhile on the calling thread is closed once, behind all. */
void uwarp_close_port(uint16_t port);

/* From now on a driver waits only for some seconds, on this thread, for an answer of its vhost. On the interrupt thread it
 * always does. */
void uwarp_limit_receives(void);

/* Calls of close go to this function first. If it answers 1, it has closed the descriptor. */
typedef int (*uwarp_close_hook)(int fd);
void uwarp_close_through(uwarp_close_hook hook);

/* Has the thread that serves vhost sockets look at those that were made since it fell asleep. Needs a socket of the caller's that
 * listens at this path and takes a connection. */
void uwarp_vhost_wake(const char *path);

/* The number by which the vhost library knows a vhost port's peer; negative without a peer. */
int uwarp_vhost_peer(uint16_t port);
/* The eventfd to which that peer writes when it has put packets into a queue; negative if there is none. */
int uwarp_vhost_kick(int peer, uint16_t queue);
/* Has the peer write to it (1), or no longer (0). Negative if that cannot be done. */
int uwarp_vhost_announce(int peer, uint16_t queue, int on);
/* The socket of a queue of an af_packet port; negative if it is not found. */
int uwarp_packet_socket(uint16_t port, uint16_t queue);

/* Offsets and sizes as C sees them, for comparison. */
struct uwarp_layout {
	size_t mempool_cache_size, mempool_local_cache, mempool_pool_data, mempool_size;
	size_t cache_size, cache_len, cache_flushthresh, cache_objs;
	size_t fp_ops_size, fp_ops_rx_burst, fp_ops_tx_burst, fp_ops_rxq, fp_ops_txq;
	size_t ring_prod_tail, ring_cons_tail, ring_mask;
};
void uwarp_layout_fill(struct uwarp_layout *layout);

#endif
