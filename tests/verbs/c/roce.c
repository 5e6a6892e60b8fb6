/*
 * Queue pairs that a program connects itself, by ibv_modify_qp, on a device of RoCE. Both ends are in this process.
 *
 *   cc -o roce roce.c -libverbs
 *   UWARP_DEVICE=roce ./roce TEST
 *   TEST: device|masks|posts|pair|contexts|itself|early|reset|nobody|gone|killed|nothing
 *
 * Exit status 0 if everything was as it has to be; otherwise a line on standard error says what was not.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <sys/wait.h>

#include "side.h"

static struct side *side(struct ibv_context *context)
{
	return side_of(context, IBV_QPT_RC, 0);
}

static int init(struct side *of)
{
	struct ibv_qp_attr wanted = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS };

	return ibv_modify_qp(of->qp, &wanted, INIT_MASK);
}

static struct ibv_qp_attr to_receive(struct side *of, uint32_t peer)
{
	struct ibv_qp_attr wanted = { .qp_state = IBV_QPS_RTR,	.path_mtu = IBV_MTU_4096, .dest_qp_num = peer,
				      .max_dest_rd_atomic = 4,	.min_rnr_timer = 12 };

	wanted.ah_attr.port_num = 1;
	wanted.ah_attr.is_global = 1;
	wanted.ah_attr.grh.hop_limit = 1;
	check(ibv_query_gid(of->context, 1, 0, &wanted.ah_attr.grh.dgid) == 0);
	return wanted;
}

static struct ibv_qp_attr to_send(void)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				     .max_rd_atomic = 4 };
}

static int ready_to_receive(struct side *of, uint32_t peer)
{
	struct ibv_qp_attr wanted = to_receive(of, peer);

	return ibv_modify_qp(of->qp, &wanted, RTR_MASK);
}

static int ready_to_send(struct side *of)
{
	struct ibv_qp_attr wanted = to_send();

	return ibv_modify_qp(of->qp, &wanted, RTS_MASK);
}

static void connects(struct side *of, uint32_t peer)
{
	check(init(of) == 0);
	check(ready_to_receive(of, peer) == 0);
	check(ready_to_send(of) == 0);
}

static int receive(struct side *of, uint64_t number)
{
	struct ibv_sge entry = { (uintptr_t)of->room + ROOM / 2, LENGTH, of->region->lkey };
	struct ibv_recv_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = 1 }, *bad;

	return ibv_post_recv(of->qp, &request, &bad);
}

static int post(struct side *of, struct side *peer, uint64_t number, enum ibv_wr_opcode opcode)
{
	struct ibv_sge entry = { (uintptr_t)of->room, opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : LENGTH,
				 of->region->lkey };
	struct ibv_send_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = 1, .opcode = opcode,
				       .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (peer && opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		request.wr.atomic.remote_addr = (uintptr_t)peer->room + 1024;
		request.wr.atomic.rkey = peer->region->rkey;
		request.wr.atomic.compare_add = 1;
	} else if (peer) {
		request.wr.rdma.remote_addr = (uintptr_t)peer->room + 1024;
		request.wr.rdma.rkey = peer->region->rkey;
	}
	return ibv_post_send(of->qp, &request, &bad);
}

/* A message with this octet in it. */
static void message(struct side *from, struct side *to, uint8_t octet)
{
	check(receive(to, octet) == 0);
	memset(from->room, octet, LENGTH);
	check(post(from, NULL, octet, IBV_WR_SEND) == 0);
	completes(from->sent, from, octet, IBV_WC_SUCCESS);
	completes(to->received, to, octet, IBV_WC_SUCCESS);
	check(to->room[ROOM / 2] == octet && to->room[ROOM / 2 + LENGTH - 1] == octet);
}

static void device(void)
{
	struct ibv_context *context = opened();
	struct ibv_pd *domain = ibv_alloc_pd(context);
	struct ibv_ah_attr vector = { .port_num = 1, .is_global = 1 };
	struct ibv_gid_entry entry;
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_ah *ah;
	uint16_t key;

	check(context->device->transport_type == IBV_TRANSPORT_IB && context->device->node_type == IBV_NODE_CA);
	check(ibv_query_port(context, 1, &port) == 0);
	check(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.state == IBV_PORT_ACTIVE && port.lid != 0);
	check(ibv_query_pkey(context, 1, 0, &key) == 0 && key == 0xffff);
	check(port.gid_tbl_len > 0);
	for (int index = 0; index < port.gid_tbl_len; index++) {
		check(ibv_query_gid_ex(context, 1, index, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
		check(ibv_query_gid(context, 1, index, &gid) == 0 && memcmp(&gid, &entry.gid, sizeof(gid)) == 0);
		check(gid.global.interface_id != 0 && entry.ndev_ifindex != 0);
		vector.grh.sgid_index = index;
		vector.grh.dgid = gid;
		check((ah = ibv_create_ah(domain, &vector)) != NULL && ah->pd == domain);
		check(ibv_dealloc_pd(domain) == EBUSY);
		check(ibv_destroy_ah(ah) == 0 && ibv_destroy_ah(ah) == EINVAL);
	}
	check(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) != 0);
	/* The first one is the host's address, of IPv4. */
	check(ibv_query_gid(context, 1, 0, &gid) == 0 && gid.raw[10] == 0xff && gid.raw[12] == 10);
	vector.grh.sgid_index = port.gid_tbl_len;
	check(ibv_create_ah(domain, &vector) == NULL && errno == EINVAL);
	check(ibv_dealloc_pd(domain) == 0 && ibv_close_device(context) == 0);
}

/* Whether a change is refused with EINVAL, and leaves the queue pair as it is. */
static void refuses(struct side *of, struct ibv_qp_attr wanted, int mask)
{
	struct ibv_qp_attr before = attributes(of), after;

	check(ibv_modify_qp(of->qp, &wanted, mask) == EINVAL);
	after = attributes(of);
	check(memcmp(&before, &after, sizeof(before)) == 0);
}

/* Each attribute that a change of state wants is missed. */
static void each_is_missed(struct side *of, struct ibv_qp_attr wanted, int mask)
{
	for (int bit = 1; bit; bit <<= 1)
		if ((bit & mask) && bit != IBV_QP_STATE)
			refuses(of, wanted, mask & ~bit);
}

static void masks(void)
{
	struct side *one = side(opened()), *other = side(one->context);
	struct ibv_qp_attr wanted = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS }, found;

	check(attributes(one).qp_state == IBV_QPS_RESET);
	each_is_missed(one, wanted, INIT_MASK);
	refuses(one, wanted, INIT_MASK | IBV_QP_TIMEOUT);
	refuses(one, to_receive(one, other->qp->qp_num), RTR_MASK);
	check(init(one) == 0 && init(one) == 0);
	wanted = to_receive(one, other->qp->qp_num);
	each_is_missed(one, wanted, RTR_MASK);
	refuses(one, wanted, RTR_MASK | IBV_QP_SQ_PSN);
	refuses(one, to_send(), RTS_MASK);
	wanted.ah_attr.grh.sgid_index = 77;
	refuses(one, wanted, RTR_MASK);
	wanted = to_receive(one, 1 << 24);
	refuses(one, wanted, RTR_MASK);
	wanted = to_receive(one, other->qp->qp_num);
	wanted.ah_attr.is_global = 0;
	wanted.ah_attr.dlid = 77;
	refuses(one, wanted, RTR_MASK);
	/* An address without a global route is this host, by its LID. */
	wanted.ah_attr.dlid = 1;
	wanted.rq_psn = 5;
	wanted.max_dest_rd_atomic = 0;
	check(ibv_modify_qp(one->qp, &wanted, RTR_MASK) == 0);
	found = attributes(one);
	check(found.qp_state == IBV_QPS_RTR && found.dest_qp_num == other->qp->qp_num && found.rq_psn == 5);
	check(found.path_mtu == IBV_MTU_4096 && found.min_rnr_timer == 12 && found.ah_attr.dlid == 1);
	wanted = to_send();
	each_is_missed(one, wanted, RTS_MASK);
	wanted.timeout = 32;
	refuses(one, wanted, RTS_MASK);
	wanted.timeout = 18;
	wanted.max_rd_atomic = 0;
	check(ibv_modify_qp(one->qp, &wanted, RTS_MASK) == 0);
	found = attributes(one);
	check(found.qp_state == IBV_QPS_RTS && found.timeout == 18 && found.retry_cnt == 7 && found.max_rd_atomic == 0);
	wanted.qp_access_flags = IBV_ACCESS_REMOTE_READ;
	check(ibv_modify_qp(one->qp, &wanted, IBV_QP_ACCESS_FLAGS) == 0);
	check(attributes(one).qp_access_flags == IBV_ACCESS_REMOTE_READ);
	refuses(one, wanted, INIT_MASK);
	/* Its peer takes no Reads of it, and gets its messages all the same. */
	connects(other, one->qp->qp_num);
	message(one, other, 1);
	message(other, one, 2);
	destroy(one);
	destroy(other);
}

/* Requests are taken in the states in which InfiniBand takes them. */
static void posts(void)
{
	struct side *one = side(opened()), *other = side(one->context);

	check(post(one, NULL, 1, IBV_WR_SEND) == EINVAL);
	check(init(one) == 0);
	check(receive(one, 2) == 0 && post(one, NULL, 3, IBV_WR_SEND) == EINVAL);
	check(ready_to_receive(one, other->qp->qp_num) == 0);
	check(post(one, NULL, 4, IBV_WR_SEND) == EINVAL);
	connects(other, one->qp->qp_num);
	check(post(other, NULL, 5, IBV_WR_SEND) == 0);
	completes(other->sent, other, 5, IBV_WC_SUCCESS);
	completes(one->received, one, 2, IBV_WC_SUCCESS);
	check(post(one, NULL, 6, IBV_WR_SEND) == EINVAL);
	check(ready_to_send(one) == 0);
	message(one, other, 7);
	check(receive(one, 8) == 0 && moved(one, IBV_QPS_ERR) == 0);
	completes(one->received, one, 8, IBV_WC_WR_FLUSH_ERR);
	check(post(one, NULL, 9, IBV_WR_SEND) == 0 && receive(one, 10) == 0);
	completes(one->sent, one, 9, IBV_WC_WR_FLUSH_ERR);
	completes(one->received, one, 10, IBV_WC_WR_FLUSH_ERR);
	destroy(one);
	destroy(other);
}

/* All operations, both ways, between queue pairs of one or of two contexts. */
static void operations(struct side *one, struct side *other)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						      IBV_WR_ATOMIC_FETCH_AND_ADD };

	message(one, other, 1);
	message(other, one, 2);
	for (int at = 0; at < 3; at++) {
		check(post(one, other, 10 + at, opcodes[at]) == 0);
		completes(one->sent, one, 10 + at, IBV_WC_SUCCESS);
	}
	check(other->room[1024] == other->room[1032] + 1);
}

static void pair(int contexts)
{
	struct side *one = side(opened()), *other = side(contexts > 1 ? opened() : one->context);

	check(one->qp->qp_num != other->qp->qp_num);
	connects(one, other->qp->qp_num);
	connects(other, one->qp->qp_num);
	operations(one, other);
	destroy(other);
	destroy(one);
}

static void itself(void)
{
	struct side *one = side(opened());

	for (int round = 0; round < 3; round++) {
		connects(one, one->qp->qp_num);
		operations(one, one);
		check(receive(one, 5) == 0);
		check(moved(one, round == 1 ? IBV_QPS_ERR : IBV_QPS_RESET) == 0);
		if (round == 1) {
			completes(one->received, one, 5, IBV_WC_WR_FLUSH_ERR);
			check(moved(one, IBV_QPS_RESET) == 0);
		}
		stays_silent(one->received, 300);
	}
	connects(one, one->qp->qp_num);
	message(one, one, 9);
	destroy(one);
}

/* The one is ready, and has sent, long before the other is; no call waits. Then the other way round. */
static void early(void)
{
	struct ibv_context *context = opened();

	for (int round = 0; round < 2; round++) {
		struct side *low = side(context), *high = side(context), *first, *last;
		time_t begin = time(NULL);

		first = (low->qp->qp_num < high->qp->qp_num) == (round == 0) ? low : high;
		last = first == low ? high : low;
		check(receive(last, 1) == 0);
		connects(first, last->qp->qp_num);
		check(post(first, NULL, 2, IBV_WR_SEND) == 0);
		check(time(NULL) - begin <= 2);
		stays_silent(first->sent, 300);
		check(init(last) == 0);
		stays_silent(first->sent, 300);
		check(ready_to_receive(last, first->qp->qp_num) == 0);
		completes(first->sent, first, 2, IBV_WC_SUCCESS);
		completes(last->received, last, 1, IBV_WC_SUCCESS);
		check(ready_to_send(last) == 0);
		operations(last, first);
		destroy(low);
		destroy(high);
	}
}

/* With the same numbers there is a new stream, and nothing of the last one comes by it. */
static void reset(void)
{
	struct side *one = side(opened()), *other = side(one->context), *first = one, *last = other;

	for (int round = 1; round < 20; round++) {
		connects(first, last->qp->qp_num);
		connects(last, first->qp->qp_num);
		message(one, other, round);
		message(other, one, round);
		/* What is under way is lost. */
		check(receive(other, 99) == 0);
		memset(one->room, 0xee, LENGTH);
		check(post(one, NULL, 98, IBV_WR_SEND) == 0);
		check(moved(first, IBV_QPS_RESET) == 0);
		if (round % 3 == 0) {
			/* The one asks, or waits, for its new stream while the other has the last one. */
			connects(first, last->qp->qp_num);
			check(receive(first, 97) == 0);
			stays_silent(first->received, 300);
			check(moved(first, IBV_QPS_RESET) == 0);
		}
		check(moved(last, IBV_QPS_RESET) == 0);
		first = first == one ? other : one;
		last = last == one ? other : one;
	}
	destroy(one);
	destroy(other);
}

/* A peer that does not exist is no matter until something is sent. */
static void nobody(void)
{
	static const uint32_t numbers[] = { 12345, 0xfffffe };
	struct ibv_context *context = opened();

	for (int at = 0; at < 2; at++) {
		struct side *one = side(context);
		time_t begin;

		connects(one, numbers[at]);
		check(receive(one, 1) == 0);
		stays_silent(one->received, 300);
		check(attributes(one).qp_state == IBV_QPS_RTS);
		begin = time(NULL);
		check(post(one, NULL, 2, IBV_WR_SEND) == 0 && post(one, NULL, 3, IBV_WR_SEND) == 0);
		completes(one->sent, one, 2, IBV_WC_RETRY_EXC_ERR);
		check(time(NULL) - begin >= 4);
		completes(one->sent, one, 3, IBV_WC_WR_FLUSH_ERR);
		completes(one->received, one, 1, IBV_WC_WR_FLUSH_ERR);
		while (attributes(one).qp_state != IBV_QPS_ERR && time(NULL) - begin < SOON)
			;
		check(attributes(one).qp_state == IBV_QPS_ERR);
		check(moved(one, IBV_QPS_RESET) == 0);
		connects(one, one->qp->qp_num);
		message(one, one, 4);
		destroy(one);
	}
}

/* The peer's end is silent, and the next request fails. */
static void gone(void)
{
	struct side *one = side(opened()), *other = side(one->context);

	connects(one, other->qp->qp_num);
	connects(other, one->qp->qp_num);
	message(other, one, 1);
	check(receive(one, 2) == 0 && receive(one, 3) == 0);
	destroy(other);
	stays_silent(one->received, 300);
	check(attributes(one).qp_state == IBV_QPS_RTS);
	check(post(one, NULL, 4, IBV_WR_SEND) == 0);
	completes(one->sent, one, 4, IBV_WC_RETRY_EXC_ERR);
	completes(one->received, one, 2, IBV_WC_WR_FLUSH_ERR);
	completes(one->received, one, 3, IBV_WC_WR_FLUSH_ERR);
	check(receive(one, 5) == 0);
	completes(one->received, one, 5, IBV_WC_WR_FLUSH_ERR);
	destroy(one);
}

/* So is that of another program, which is killed. */
static void killed(void)
{
	int to_child[2], from_child[2], status;
	struct side *one;
	uint32_t peer;
	pid_t child;

	check(pipe(to_child) == 0 && pipe(from_child) == 0);
	check((child = fork()) >= 0);
	one = side(opened());
	check(write(child ? to_child[1] : from_child[1], &one->qp->qp_num, sizeof(peer)) == sizeof(peer));
	check(read(child ? from_child[0] : to_child[0], &peer, sizeof(peer)) == sizeof(peer));
	check(peer >> 15 != one->qp->qp_num >> 15);
	check(receive(one, 1) == 0 && receive(one, 2) == 0);
	connects(one, peer);
	check(post(one, NULL, 3, IBV_WR_SEND) == 0);
	completes(one->sent, one, 3, IBV_WC_SUCCESS);
	completes(one->received, one, 1, IBV_WC_SUCCESS);
	if (!child) {
		check(write(from_child[1], &peer, sizeof(peer)) == sizeof(peer));
		for (;;)
			pause();
	}
	check(read(from_child[0], &peer, sizeof(peer)) == sizeof(peer));
	check(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	stays_silent(one->received, 300);
	check(attributes(one).qp_state == IBV_QPS_RTS);
	check(post(one, NULL, 4, IBV_WR_SEND) == 0);
	completes(one->sent, one, 4, IBV_WC_RETRY_EXC_ERR);
	completes(one->received, one, 2, IBV_WC_WR_FLUSH_ERR);
	destroy(one);
}

/* Writes and Reads of nothing look at no key. */
static void nothing(void)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	struct side *one = side(opened()), *other = side(one->context);
	struct ibv_send_wr request = { .send_flags = IBV_SEND_SIGNALED }, *bad;

	connects(one, other->qp->qp_num);
	connects(other, one->qp->qp_num);
	for (int at = 0; at < 4; at++) {
		request.wr_id = at;
		request.opcode = opcodes[at / 2];
		request.wr.rdma.remote_addr = at % 2 ? 0x1234567890 : 0;
		request.wr.rdma.rkey = at % 2 ? 0xdeadbeef : 0;
		check(ibv_post_send(one->qp, &request, &bad) == 0);
		completes(one->sent, one, at, IBV_WC_SUCCESS);
	}
	message(one, other, 5);
	destroy(one);
	destroy(other);
}

int main(int count, char **words)
{
	const char *test = count == 2 ? words[1] : "";

	alarm(4 * SOON);
	if (!strcmp(test, "device"))
		device();
	else if (!strcmp(test, "masks"))
		masks();
	else if (!strcmp(test, "posts"))
		posts();
	else if (!strcmp(test, "pair"))
		pair(1);
	else if (!strcmp(test, "contexts"))
		pair(2);
	else if (!strcmp(test, "itself"))
		itself();
	else if (!strcmp(test, "early"))
		early();
	else if (!strcmp(test, "reset"))
		reset();
	else if (!strcmp(test, "nobody"))
		nobody();
	else if (!strcmp(test, "gone"))
		gone();
	else if (!strcmp(test, "killed"))
		killed();
	else if (!strcmp(test, "nothing"))
		nothing();
	else
		check(!"a test is named");
	return 0;
}
