/*
 * What programs of InfiniBand expect of queue pairs that they connect themselves, on a device of RoCE: receivers that
 * are not ready, immediate data, and who is to blame. Both ends are in this process.
 *
 *   cc -o infiniband infiniband.c -libverbs
 *   UWARP_DEVICE=roce ./infiniband TEST
 *   TEST: retries|in-time|forever|shared|write-immediate|itself|kept|immediates|blame|fault-of-requester|
 *         established|drained
 *
 * Exit status 0 if everything was as it has to be; otherwise a line on standard error says what was not.
 */
#include <arpa/inet.h>
#include <fcntl.h>

#include "side.h"

#define MILLISECOND 1000000LL
#define TIMER_MS_10 20 /* min_rnr_timer: 10.24 ms */
#define TIMER_MS_492 31 /* 491.52 ms */

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static struct side *side(struct ibv_context *context, int is_shared)
{
	return side_of(context, IBV_QPT_RC, is_shared);
}

static void ready_to_receive(struct side *of, struct side *peer, uint8_t min_rnr_timer)
{
	struct ibv_qp_attr wanted = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS };

	check(ibv_modify_qp(of->qp, &wanted, INIT_MASK) == 0);
	wanted = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 4,
				       .dest_qp_num = peer->qp->qp_num, .min_rnr_timer = min_rnr_timer };
	wanted.ah_attr.port_num = 1;
	wanted.ah_attr.is_global = 1;
	wanted.ah_attr.grh.hop_limit = 1;
	check(ibv_query_gid(of->context, 1, 0, &wanted.ah_attr.grh.dgid) == 0);
	check(ibv_modify_qp(of->qp, &wanted, RTR_MASK) == 0);
}

static void ready_to_send(struct side *of, uint8_t rnr_retry)
{
	struct ibv_qp_attr wanted = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = rnr_retry,
				      .max_rd_atomic = 4 };

	check(ibv_modify_qp(of->qp, &wanted, RTS_MASK) == 0);
}

static void connects(struct side *of, struct side *peer, uint8_t rnr_retry, uint8_t min_rnr_timer)
{
	ready_to_receive(of, peer, min_rnr_timer);
	ready_to_send(of, rnr_retry);
}

static enum ibv_qp_state state(struct side *of)
{
	return attributes(of).qp_state;
}

/* It comes a moment behind the completions. */
static void comes_to(struct side *of, enum ibv_qp_state wanted)
{
	time_t end = time(NULL) + SOON;

	while (state(of) != wanted && time(NULL) < end)
		usleep(1000);
	check(state(of) == wanted);
}

static void receive(struct side *of, uint64_t number, uint32_t length, uint32_t lkey)
{
	struct ibv_sge entry = { (uintptr_t)of->room + ROOM / 2, length, lkey };
	struct ibv_recv_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = 1 }, *bad;

	check((of->shared ? ibv_post_srq_recv(of->shared, &request, &bad) : ibv_post_recv(of->qp, &request, &bad)) == 0);
}

/* Immediate data is the number; a place in the peer's room is 1024. */
static int post(struct side *of, struct side *peer, uint64_t number, enum ibv_wr_opcode opcode, uint32_t length)
{
	struct ibv_sge entry = { (uintptr_t)of->room, length, of->region->lkey };
	struct ibv_send_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = length > 0, .opcode = opcode,
				       .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(number) }, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		request.wr.atomic.remote_addr = (uintptr_t)peer->room + 1024;
		request.wr.atomic.rkey = peer->region->rkey;
	} else {
		request.wr.rdma.remote_addr = (uintptr_t)peer->room + 1024;
		request.wr.rdma.rkey = peer->region->rkey;
	}
	return ibv_post_send(of->qp, &request, &bad);
}

/* A message with this number in it. */
static void message(struct side *from, struct side *to, uint8_t number)
{
	receive(to, number, LENGTH, to->region->lkey);
	memset(from->room, number, LENGTH);
	check(post(from, to, number, IBV_WR_SEND, LENGTH) == 0);
	completes(from->sent, from, number, IBV_WC_SUCCESS);
	completes(to->received, to, number, IBV_WC_SUCCESS);
	check(to->room[ROOM / 2] == number && to->room[ROOM / 2 + LENGTH - 1] == number);
}

/* The responder is ready to send, its receive is there, and its peer has gone. */
static void outlives(struct side *of, struct side *peer)
{
	receive(of, 70, LENGTH, of->region->lkey);
	stays_silent(of->received, 100);
	check(state(of) == IBV_QPS_RTS);
	check(post(of, peer, 71, IBV_WR_SEND, LENGTH) == 0);
	completes(of->sent, of, 71, IBV_WC_RETRY_EXC_ERR);
	if (!of->shared)
		completes(of->received, of, 70, IBV_WC_WR_FLUSH_ERR);
	comes_to(of, IBV_QPS_ERR);
}

/* The queue pair takes no more receives of its shared queue. */
static void has_no_more_receives(struct side *of)
{
	struct ibv_async_event event;
	int is_it;

	do {
		check(ibv_get_async_event(of->context, &event) == 0);
		is_it = event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == of->qp;
		ibv_ack_async_event(&event);
	} while (!is_it);
}

/* A message without a receive fails after rnr_retry waits, and not before. */
static void retries(int is_shared, enum ibv_wr_opcode opcode)
{
	struct ibv_context *context = opened();

	for (int count = 0; count < 7; count++) {
		struct side *one = side(context, is_shared), *other = side(context, is_shared);
		long long begin;

		connects(one, other, count, 1);
		connects(other, one, 7, TIMER_MS_10);
		message(one, other, 1);
		begin = now();
		check(post(one, other, 2, opcode, LENGTH) == 0 && post(one, other, 3, IBV_WR_RDMA_WRITE, LENGTH) == 0);
		receive(one, 4, LENGTH, one->region->lkey);
		completes(one->sent, one, 2, IBV_WC_RNR_RETRY_EXC_ERR);
		check(now() - begin >= count * 10 * MILLISECOND);
		completes(one->sent, one, 3, IBV_WC_WR_FLUSH_ERR);
		if (!is_shared)
			completes(one->received, one, 4, IBV_WC_WR_FLUSH_ERR);
		comes_to(one, IBV_QPS_ERR);
		outlives(other, one);
		if (is_shared) {
			has_no_more_receives(one);
			has_no_more_receives(other);
		}
		destroy(one);
		destroy(other);
	}
}

/* Receives that come before the last wait is over. The receiver's timer may change at any time. */
static void in_time(int is_shared)
{
	struct ibv_context *context = opened();
	struct side *one = side(context, is_shared), *other = side(context, is_shared);
	struct ibv_qp_attr wanted = { .min_rnr_timer = TIMER_MS_492 };

	connects(one, other, 6, 1);
	connects(other, one, 6, 1);
	check(ibv_modify_qp(other->qp, &wanted, IBV_QP_MIN_RNR_TIMER) == 0);
	for (int round = 1; round < 10; round++) {
		check(post(one, other, round, round % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, LENGTH) == 0);
		stays_silent(one->sent, 20);
		receive(other, round, LENGTH, other->region->lkey);
		completes(one->sent, one, round, IBV_WC_SUCCESS);
		completes(other->received, other, round, IBV_WC_SUCCESS);
	}
	destroy(one);
	destroy(other);
}

/* Longer than messages wait that do not ask for it. */
static void forever(void)
{
	struct side *one = side(opened(), 0), *other = side(one->context, 0);

	connects(one, other, 7, 1);
	connects(other, one, 7, 1);
	check(post(one, other, 1, IBV_WR_SEND, LENGTH) == 0);
	stays_silent(one->sent, 8000);
	check(state(one) == IBV_QPS_RTS && state(other) == IBV_QPS_RTS);
	receive(other, 2, LENGTH, other->region->lkey);
	completes(one->sent, one, 1, IBV_WC_SUCCESS);
	completes(other->received, other, 2, IBV_WC_SUCCESS);
	message(other, one, 3);
	destroy(one);
	destroy(other);
}

/* A queue pair that is its own peer fails, and all of it is flushed. */
static void itself(void)
{
	struct side *one = side(opened(), 0);

	connects(one, one, 2, TIMER_MS_10);
	message(one, one, 1);
	check(post(one, one, 2, IBV_WR_SEND, LENGTH) == 0);
	completes(one->sent, one, 2, IBV_WC_RNR_RETRY_EXC_ERR);
	comes_to(one, IBV_QPS_ERR);
	receive(one, 3, LENGTH, one->region->lkey);
	completes(one->received, one, 3, IBV_WC_WR_FLUSH_ERR);
	destroy(one);
}

/* What came before the message is there, and is answered. */
static void kept(void)
{
	struct side *one = side(opened(), 0), *other = side(one->context, 0);

	connects(one, other, 0, 1);
	connects(other, one, 0, 1);
	receive(other, 1, LENGTH, other->region->lkey);
	memset(one->room, 0x5a, LENGTH);
	check(post(one, other, 1, IBV_WR_SEND, LENGTH) == 0 && post(one, other, 2, IBV_WR_RDMA_WRITE, LENGTH) == 0);
	check(post(one, other, 3, IBV_WR_RDMA_READ, LENGTH) == 0 && post(one, other, 4, IBV_WR_SEND, LENGTH) == 0);
	for (int number = 1; number < 4; number++)
		completes(one->sent, one, number, IBV_WC_SUCCESS);
	completes(one->sent, one, 4, IBV_WC_RNR_RETRY_EXC_ERR);
	completes(other->received, other, 1, IBV_WC_SUCCESS);
	check(other->room[ROOM / 2] == 0x5a && other->room[1024 + LENGTH - 1] == 0x5a);
	outlives(other, one);
	destroy(one);
	destroy(other);
}

/* What a receive says of a message with immediate data. */
static void says(struct side *of, uint64_t number, enum ibv_wc_opcode opcode, uint32_t length)
{
	struct ibv_wc found = completes(of->received, of, number, IBV_WC_SUCCESS);

	check(found.opcode == opcode && (found.wc_flags & IBV_WC_WITH_IMM) && found.imm_data == htonl(number));
	check(found.byte_len == length);
}

/* Sends and Writes with immediate data and octets, by all ways to post them. */
static void immediates(void)
{
	static const uint32_t lengths[] = { 0, 1, LENGTH, ROOM / 2 };
	struct side *one = side(opened(), 0), *other = side(one->context, 0);
	struct ibv_wc found;

	connects(one, other, 7, 1);
	/* Posted before there is a stream. */
	receive(other, 1, ROOM / 2, other->region->lkey);
	check(post(one, other, 1, IBV_WR_SEND_WITH_IMM, LENGTH) == 0);
	connects(other, one, 7, 1);
	says(other, 1, IBV_WC_RECV, LENGTH);
	completes(one->sent, one, 1, IBV_WC_SUCCESS);
	for (int at = 0; at < 4; at++) {
		memset(one->room, at + 1, ROOM / 2);
		receive(other, 10 + at, ROOM / 2, other->region->lkey);
		check(post(one, other, 10 + at, IBV_WR_SEND_WITH_IMM, lengths[at]) == 0);
		check(completes(one->sent, one, 10 + at, IBV_WC_SUCCESS).opcode == IBV_WC_SEND);
		says(other, 10 + at, IBV_WC_RECV, lengths[at]);
		check(!lengths[at] || other->room[ROOM / 2 + lengths[at] - 1] == at + 1);
		receive(other, 20 + at, LENGTH, other->region->lkey);
		check(post(one, other, 20 + at, IBV_WR_RDMA_WRITE_WITH_IMM, lengths[at]) == 0);
		completes(one->sent, one, 20 + at, IBV_WC_SUCCESS);
		says(other, 20 + at, IBV_WC_RECV_RDMA_WITH_IMM, lengths[at]);
		receive(other, 30 + at, LENGTH, other->region->lkey);
		ibv_wr_start(one->extended);
		one->extended->wr_id = 30 + at;
		one->extended->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
		ibv_wr_send_imm(one->extended, htonl(30 + at));
		if (at < 3)
			ibv_wr_set_inline_data(one->extended, one->room, lengths[at]);
		else
			ibv_wr_set_sge(one->extended, one->region->lkey, (uintptr_t)one->room, 5);
		check(ibv_wr_complete(one->extended) == 0);
		completes(one->sent, one, 30 + at, IBV_WC_SUCCESS);
		says(other, 30 + at, IBV_WC_RECV, at < 3 ? lengths[at] : 5);
	}
	/* A Send without it is told from one with it. */
	receive(other, 90, LENGTH, other->region->lkey);
	check(post(one, other, 90, IBV_WR_SEND, LENGTH) == 0);
	found = completes(other->received, other, 90, IBV_WC_SUCCESS);
	check(!(found.wc_flags & IBV_WC_WITH_IMM) && found.byte_len == LENGTH);
	destroy(one);
	destroy(other);
}

/* Each side's status for a request that the responder refuses. */
static void blame(void)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		uint32_t length, room;
		int is_bad_key, is_bad_receive;
		enum ibv_wc_status requester, responder;
	} cases[] = {
		{ IBV_WR_SEND, LENGTH + 1, LENGTH, 0, 0, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR },
		{ IBV_WR_SEND_WITH_IMM, LENGTH + 1, LENGTH, 0, 0, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR },
		{ IBV_WR_SEND, ROOM / 2, LENGTH, 0, 0, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR },
		{ IBV_WR_SEND, LENGTH, LENGTH, 0, 1, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR },
		{ IBV_WR_RDMA_WRITE, LENGTH, LENGTH, 1, 0, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR },
		{ IBV_WR_RDMA_WRITE_WITH_IMM, LENGTH, LENGTH, 1, 0, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR },
		{ IBV_WR_RDMA_READ, LENGTH, LENGTH, 1, 0, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, 8, LENGTH, 1, 0, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR },
	};
	struct ibv_context *context = opened();

	for (size_t at = 0; at < sizeof(cases) / sizeof(cases[0]); at++) {
		struct side *one = side(context, 0), *other = side(context, 0);
		struct ibv_mr *region = other->region;

		connects(one, other, 7, 1);
		connects(other, one, 7, 1);
		message(one, other, 1);
		if (cases[at].is_bad_key)
			check((other->region = ibv_reg_mr(other->domain, other->room, ROOM, 0)) != NULL);
		receive(other, 2, cases[at].room, cases[at].is_bad_receive ? 0x12345 : region->lkey);
		check(post(one, other, 3, cases[at].opcode, cases[at].length) == 0);
		completes(one->sent, one, 3, cases[at].requester);
		completes(other->received, other, 2, cases[at].responder);
		comes_to(one, IBV_QPS_ERR);
		comes_to(other, IBV_QPS_ERR);
		if (cases[at].is_bad_key)
			check(ibv_dereg_mr(region) == 0);
		destroy(one);
		destroy(other);
	}
}

/* A requester that fails by a mistake of its own leaves the responder as it is. */
static void fault_of_requester(void)
{
	struct side *one = side(opened(), 0), *other = side(one->context, 0);
	struct ibv_sge entry = { (uintptr_t)one->room, LENGTH, 0x12345 };
	struct ibv_send_wr request = { .wr_id = 2, .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_SEND,
				       .send_flags = IBV_SEND_SIGNALED }, *bad;

	connects(one, other, 7, 1);
	connects(other, one, 7, 1);
	message(one, other, 1);
	check(ibv_post_send(one->qp, &request, &bad) == 0);
	completes(one->sent, one, 2, IBV_WC_LOC_PROT_ERR);
	comes_to(one, IBV_QPS_ERR);
	outlives(other, one);
	destroy(one);
	destroy(other);
}

/* The first message, or request, of a queue pair that is ready to receive alone is an event. */
static void established(void)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						      IBV_WR_SEND_WITH_IMM };
	struct ibv_context *context = opened();
	struct ibv_async_event event;

	check(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	for (int at = 0; at < 4; at++) {
		struct side *one = side(context, 0), *other = side(context, 0);
		time_t end = time(NULL) + SOON;

		connects(one, other, 7, 1);
		ready_to_receive(other, one, 1);
		receive(other, 1, LENGTH, other->region->lkey);
		receive(other, 2, LENGTH, other->region->lkey);
		check(ibv_get_async_event(context, &event) == -1);
		check(post(one, other, 1, opcodes[at], LENGTH) == 0);
		completes(one->sent, one, 1, IBV_WC_SUCCESS);
		while (ibv_get_async_event(context, &event) != 0)
			check(errno == EAGAIN && time(NULL) < end);
		check(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == other->qp);
		ibv_ack_async_event(&event);
		/* It comes once. */
		check(post(one, other, 2, IBV_WR_SEND, LENGTH) == 0);
		completes(one->sent, one, 2, IBV_WC_SUCCESS);
		ready_to_send(other, 7);
		receive(one, 3, LENGTH, one->region->lkey);
		check(post(other, one, 3, IBV_WR_SEND, LENGTH) == 0);
		completes(one->received, one, 3, IBV_WC_SUCCESS);
		stays_silent(one->sent, 100);
		check(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
		destroy(one);
		destroy(other);
	}
}

static int held(struct side *of, uint8_t notify)
{
	struct ibv_qp_attr wanted = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = notify };

	return ibv_modify_qp(of->qp, &wanted, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
}

static int goes_on(struct side *of)
{
	return moved(of, IBV_QPS_RTS);
}

static void is_drained_soon(struct side *of)
{
	time_t end = time(NULL) + SOON;

	while (attributes(of).sq_draining && time(NULL) < end)
		usleep(1000);
	check(attributes(of).qp_state == IBV_QPS_SQD && attributes(of).sq_draining == 0);
}

/* A send queue that is held takes requests and begins none, and the peer is served. */
static void held_requests(struct side *one, struct side *other)
{
	struct ibv_qp_attr wanted = { .qp_access_flags = 0 };

	check(held(one, 0) == 0 && state(one) == IBV_QPS_SQD && held(one, 0) == EINVAL);
	is_drained_soon(one);
	receive(other, 2, LENGTH, other->region->lkey);
	check(post(one, other, 2, IBV_WR_SEND, LENGTH) == 0 && post(one, other, 3, IBV_WR_RDMA_WRITE, LENGTH) == 0);
	check(post(other, one, 4, IBV_WR_RDMA_WRITE, LENGTH) == 0 && post(other, one, 5, IBV_WR_RDMA_READ, LENGTH) == 0);
	completes(other->sent, other, 4, IBV_WC_SUCCESS);
	completes(other->sent, other, 5, IBV_WC_SUCCESS);
	stays_silent(one->sent, 100);
	check(ibv_poll_cq(other->received, 1, &(struct ibv_wc){ 0 }) == 0);
	/* What may be changed meanwhile, and what not. */
	check(moved(one, IBV_QPS_SQD) == 0 && moved(one, IBV_QPS_INIT) == EINVAL && moved(one, IBV_QPS_RTR) == EINVAL);
	check(ibv_modify_qp(one->qp, &wanted, IBV_QP_ACCESS_FLAGS) == 0 && attributes(one).qp_access_flags == 0);
	wanted = attributes(one);
	wanted.qp_access_flags = ACCESS;
	wanted.timeout = 15;
	check(ibv_modify_qp(one->qp, &wanted, IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_TIMEOUT) == 0);
	check(attributes(one).timeout == 15 && attributes(one).qp_access_flags == ACCESS);
	wanted.ah_attr.grh.dgid.raw[15] ^= 1;
	check(ibv_modify_qp(one->qp, &wanted, IBV_QP_AV) == EINVAL);
	check(ibv_modify_qp(one->qp, &wanted, IBV_QP_DEST_QPN) == EINVAL);
	check(goes_on(one) == 0 && state(one) == IBV_QPS_RTS);
	completes(one->sent, one, 2, IBV_WC_SUCCESS);
	completes(one->sent, one, 3, IBV_WC_SUCCESS);
	completes(other->received, other, 2, IBV_WC_SUCCESS);
}

/* The event comes when what was begun has completed, here a message that waits for its receive. */
static void event_of_drained(struct side *one, struct side *other)
{
	time_t end = time(NULL) + SOON;
	struct ibv_async_event event;

	check(post(one, other, 10, IBV_WR_SEND, LENGTH) == 0);
	stays_silent(one->sent, 50);
	check(held(one, 1) == 0 && attributes(one).sq_draining == 1 && attributes(one).en_sqd_async_notify == 1);
	check(post(one, other, 11, IBV_WR_SEND, LENGTH) == 0);
	stays_silent(one->sent, 50);
	check(attributes(one).sq_draining == 1 && ibv_get_async_event(one->context, &event) == -1 && errno == EAGAIN);
	receive(other, 10, LENGTH, other->region->lkey);
	receive(other, 11, LENGTH, other->region->lkey);
	completes(one->sent, one, 10, IBV_WC_SUCCESS);
	while (ibv_get_async_event(one->context, &event) != 0)
		check(errno == EAGAIN && time(NULL) < end);
	check(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == one->qp);
	ibv_ack_async_event(&event);
	check(attributes(one).sq_draining == 0);
	stays_silent(one->sent, 50);
	check(goes_on(one) == 0);
	completes(one->sent, one, 11, IBV_WC_SUCCESS);
	completes(other->received, other, 10, IBV_WC_SUCCESS);
	completes(other->received, other, 11, IBV_WC_SUCCESS);
}

static void drained(void)
{
	struct side *one = side(opened(), 0), *other = side(one->context, 0), *alone = side(one->context, 0);
	struct ibv_async_event event;

	check(fcntl(one->context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	check(held(one, 0) == EINVAL && moved(one, IBV_QPS_SQD) == EINVAL);
	connects(one, other, 7, 1);
	connects(other, one, 7, 1);
	message(one, other, 1);
	for (int round = 0; round < 3; round++) {
		held_requests(one, other);
		event_of_drained(one, other);
	}
	/* Before there is a stream, and with a queue pair that is its own peer. */
	connects(alone, alone, 7, 1);
	check(held(alone, 1) == 0);
	is_drained_soon(alone);
	while (ibv_get_async_event(one->context, &event) != 0)
		check(errno == EAGAIN);
	check(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == alone->qp);
	ibv_ack_async_event(&event);
	receive(alone, 20, LENGTH, alone->region->lkey);
	check(post(alone, alone, 20, IBV_WR_SEND, LENGTH) == 0);
	stays_silent(alone->sent, 300);
	check(goes_on(alone) == 0);
	completes(alone->sent, alone, 20, IBV_WC_SUCCESS);
	completes(alone->received, alone, 20, IBV_WC_SUCCESS);
	/* What is held is flushed at the end. */
	check(held(one, 0) == 0 && post(one, other, 30, IBV_WR_SEND, LENGTH) == 0);
	check(moved(one, IBV_QPS_ERR) == 0);
	completes(one->sent, one, 30, IBV_WC_WR_FLUSH_ERR);
	check(moved(one, IBV_QPS_RESET) == 0 && moved(alone, IBV_QPS_SQD) == 0 && moved(alone, IBV_QPS_RESET) == 0);
	destroy(one);
	destroy(other);
	destroy(alone);
}

int main(int count, char **words)
{
	const char *test = count == 2 ? words[1] : "";

	alarm(4 * SOON);
	if (!strcmp(test, "retries"))
		retries(0, IBV_WR_SEND);
	else if (!strcmp(test, "in-time"))
		in_time(0);
	else if (!strcmp(test, "forever"))
		forever();
	else if (!strcmp(test, "shared"))
		retries(1, IBV_WR_SEND), in_time(1);
	else if (!strcmp(test, "write-immediate"))
		retries(0, IBV_WR_RDMA_WRITE_WITH_IMM);
	else if (!strcmp(test, "itself"))
		itself();
	else if (!strcmp(test, "kept"))
		kept();
	else if (!strcmp(test, "immediates"))
		immediates();
	else if (!strcmp(test, "blame"))
		blame();
	else if (!strcmp(test, "fault-of-requester"))
		fault_of_requester();
	else if (!strcmp(test, "established"))
		established();
	else if (!strcmp(test, "drained"))
		drained();
	else
		check(!"a test is named");
	return 0;
}
