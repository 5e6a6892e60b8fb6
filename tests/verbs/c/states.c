/*
 * States and attributes of queue pairs, as the manual pages have them. Both ends are in this process.
 *
 *   cc -o states states.c -lrdmacm -libverbs
 *   ./states TEST ADDRESS
 *   TEST: unconnected|failed|fence|attributes|length|reads|places|gids|close
 *
 * Exit status 0 if everything was as it has to be; otherwise a line on standard error says what was not.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <time.h>

#include <rdma/rdma_cma.h>

#include "check.h"

#define PORT 7490
#define ROOM 65536
#define PLACES 4

static const char *address;
static struct rdma_event_channel *events;
static struct rdma_cm_id *listener, *client, *server;
static struct ibv_pd *domain;
static struct ibv_cq *sent, *received; /* of both ends */
static struct ibv_mr *region;
static uint8_t room[ROOM] __attribute__((aligned(64)));

static struct rdma_cm_id *event(enum rdma_cm_event_type wanted, uint8_t *reads)
{
	struct rdma_cm_event *found;
	struct rdma_cm_id *id;

	check(rdma_get_cm_event(events, &found) == 0);
	if (found->event != wanted)
		fprintf(stderr, "%s and not %s\n", rdma_event_str(found->event), rdma_event_str(wanted));
	check(found->event == wanted);
	id = found->id;
	if (reads)
		*reads = found->param.conn.initiator_depth;
	check(rdma_ack_cm_event(found) == 0);
	return id;
}

static struct sockaddr_in at(uint16_t port)
{
	struct sockaddr_in out = { .sin_family = AF_INET, .sin_port = htons(port) };

	check(inet_pton(AF_INET, address, &out.sin_addr) == 1);
	return out;
}

static void make_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr wanted = { .qp_type = IBV_QPT_RC, .cap = { PLACES, PLACES, 1, 1, 0 } };

	if (!domain) {
		check((domain = ibv_alloc_pd(id->verbs)) != NULL);
		check((sent = ibv_create_cq(id->verbs, 64, NULL, NULL, 0)) != NULL);
		check((received = ibv_create_cq(id->verbs, 64, NULL, NULL, 0)) != NULL);
		region = ibv_reg_mr(domain, room, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
		check(region != NULL);
	}
	wanted.send_cq = sent;
	wanted.recv_cq = received;
	check(rdma_create_qp(id, domain, &wanted) == 0);
}

/* An identifier with a queue pair, ready to connect to a port. */
static struct rdma_cm_id *resolved(uint16_t port)
{
	struct sockaddr_in peer = at(port);
	struct rdma_cm_id *id;

	check(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	check(rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 5000) == 0);
	event(RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	check(rdma_resolve_route(id, 5000) == 0);
	event(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	make_queue_pair(id);
	return id;
}

static void listens(void)
{
	struct sockaddr_in own = at(PORT);

	check(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
	check(rdma_bind_addr(listener, (struct sockaddr *)&own) == 0);
	check(rdma_listen(listener, 4) == 0);
}

/* Connects `client`. Gives how many Reads it may have outstanding. */
static uint8_t connects(uint8_t responder_resources)
{
	struct rdma_conn_param wanted = { .responder_resources = 4, .initiator_depth = 4 };
	uint8_t reads, of_server;

	check(rdma_connect(client, &wanted) == 0);
	server = event(RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	make_queue_pair(server);
	wanted.responder_resources = responder_resources;
	check(rdma_accept(server, &wanted) == 0);
	/* Which comes first is open. */
	if (event(RDMA_CM_EVENT_ESTABLISHED, &reads) == client) {
		event(RDMA_CM_EVENT_ESTABLISHED, &of_server);
	} else {
		of_server = reads;
		event(RDMA_CM_EVENT_ESTABLISHED, &reads);
	}
	check(of_server == 4);
	return reads;
}

static void connected(void)
{
	listens();
	client = resolved(PORT);
	check(connects(4) == 4);
}

static int receive(struct ibv_qp *qp, uint64_t number)
{
	struct ibv_sge entry = { (uintptr_t)room + ROOM / 2, 64, region->lkey };
	struct ibv_recv_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &request, &bad);
}

/* Posts `opcode` over so many octets of the room, from and to the same place. */
static int post(struct ibv_qp *qp, uint64_t number, enum ibv_wr_opcode opcode, uint32_t length)
{
	struct ibv_sge entry = { (uintptr_t)room, length, region->lkey };
	struct ibv_send_wr request = { .wr_id = number, .sg_list = &entry, .num_sge = 1, .opcode = opcode,
				       .send_flags = IBV_SEND_SIGNALED }, *bad;

	request.imm_data = htonl(0x01020304);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		request.wr.atomic.remote_addr = (uintptr_t)room + 1024;
		request.wr.atomic.rkey = region->rkey;
		request.wr.atomic.compare_add = 1;
	} else {
		request.wr.rdma.remote_addr = (uintptr_t)room + 1024;
		request.wr.rdma.rkey = region->rkey;
	}
	return ibv_post_send(qp, &request, &bad);
}

static void flushed(struct ibv_cq *queue, uint64_t number)
{
	struct ibv_wc found = next_of(queue);

	check(found.wr_id == number && found.status == IBV_WC_WR_FLUSH_ERR);
}

static int moved(struct ibv_qp *qp, enum ibv_qp_state to)
{
	struct ibv_qp_attr wanted = { .qp_state = to };

	return ibv_modify_qp(qp, &wanted, IBV_QP_STATE);
}

static struct ibv_qp_attr attributes(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr made;
	struct ibv_qp_attr found;

	memset(&found, 0xff, sizeof(found));
	check(ibv_query_qp(qp, &found, IBV_QP_STATE, &made) == 0);
	check(found.qp_state == qp->state && found.cur_qp_state == qp->state);
	return found;
}

/* The queue pair takes what is posted, and flushes it. */
static void flushes(struct ibv_qp *qp)
{
	check(attributes(qp).qp_state == IBV_QPS_ERR);
	check(receive(qp, 20) == 0);
	flushed(received, 20);
	check(post(qp, 21, IBV_WR_SEND, 0) == 0);
	flushed(sent, 21);
	check(post(qp, 22, IBV_WR_ATOMIC_FETCH_AND_ADD, 8) == 0);
	flushed(sent, 22);
}

static void one_message(void)
{
	check(receive(server->qp, 30) == 0);
	check(post(client->qp, 31, IBV_WR_SEND, 8) == 0);
	check(next_of(sent).status == IBV_WC_SUCCESS);
	check(next_of(received).status == IBV_WC_SUCCESS);
}

/* A queue pair that was never connected is flushed at its move to ERR, and is like new when it was reset. */
static void unconnected(void)
{
	listens();
	client = resolved(PORT);
	for (int round = 0; round < 3; round++) {
		check(receive(client->qp, 1) == 0 && receive(client->qp, 2) == 0);
		check(post(client->qp, 3, IBV_WR_SEND, 0) == EINVAL);
		check(moved(client->qp, IBV_QPS_ERR) == 0);
		if (round < 2) {
			flushed(received, 1);
			flushed(received, 2);
			flushes(client->qp);
		}
		/* What is flushed is not looked at in the last round. */
		check(moved(client->qp, IBV_QPS_RESET) == 0);
		check(post(client->qp, 4, IBV_WR_SEND, 0) == EINVAL);
		check(moved(client->qp, IBV_QPS_INIT) == 0);
	}
	check(connects(4) == 4);
	one_message();
	/* From a connection, too, and at once. */
	check(moved(client->qp, IBV_QPS_ERR) == 0);
	check(moved(client->qp, IBV_QPS_RESET) == 0);
	check(moved(client->qp, IBV_QPS_INIT) == 0);
	check(receive(client->qp, 5) == 0);
	event(RDMA_CM_EVENT_DISCONNECTED, NULL);
	event(RDMA_CM_EVENT_DISCONNECTED, NULL);
	check(client->qp->state == IBV_QPS_INIT && server->qp->state == IBV_QPS_ERR);
	check(ibv_poll_cq(received, 1, &(struct ibv_wc){ 0 }) == 0);
}

/* So is one whose connection is refused, rejected, or given up. */
static void failed(void)
{
	struct rdma_conn_param wanted = { .responder_resources = 1, .initiator_depth = 1 };

	listens();
	client = resolved(PORT + 1);
	check(receive(client->qp, 1) == 0);
	check(rdma_connect(client, &wanted) == 0);
	event(RDMA_CM_EVENT_REJECTED, NULL);
	flushed(received, 1);
	flushes(client->qp);

	client = resolved(PORT);
	check(receive(client->qp, 2) == 0);
	check(rdma_connect(client, &wanted) == 0);
	server = event(RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	check(rdma_reject(server, NULL, 0) == 0);
	event(RDMA_CM_EVENT_REJECTED, NULL);
	flushed(received, 2);
	flushes(client->qp);

	client = resolved(PORT);
	check(receive(client->qp, 3) == 0);
	check(rdma_connect(client, &wanted) == 0);
	server = event(RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	check(rdma_disconnect(client) == 0);
	event(RDMA_CM_EVENT_DISCONNECTED, NULL);
	flushed(received, 3);
	flushes(client->qp);
}

/* Whoever takes access from a queue pair has it back when the call returns. */
static void fence(void)
{
	static const struct { unsigned int flag; enum ibv_wr_opcode opcode; uint32_t length; } kinds[] = {
		{ IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE, 8 },
		{ IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_READ, 8 },
		{ IBV_ACCESS_REMOTE_ATOMIC, IBV_WR_ATOMIC_FETCH_AND_ADD, 8 },
	};
	unsigned int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			   IBV_ACCESS_REMOTE_ATOMIC;

	listens();
	for (int without = 0; without < 3; without++) {
		struct ibv_qp_attr wanted = { .qp_access_flags = all & ~kinds[without].flag };

		client = resolved(PORT);
		check(connects(4) == 4);
		check(attributes(server->qp).qp_access_flags == all);
		for (int kind = 0; kind < 3; kind++) {
			check(post(client->qp, kind, kinds[kind].opcode, kinds[kind].length) == 0);
			check(next_of(sent).status == IBV_WC_SUCCESS);
		}
		check(ibv_modify_qp(server->qp, &wanted, IBV_QP_ACCESS_FLAGS) == 0);
		check(attributes(server->qp).qp_access_flags == wanted.qp_access_flags);
		for (int kind = 0; kind < 3; kind++) {
			if (kind == without)
				continue;
			check(post(client->qp, kind, kinds[kind].opcode, kinds[kind].length) == 0);
			check(next_of(sent).status == IBV_WC_SUCCESS);
		}
		memset(room + 1024, 7, 8);
		memset(room, 1, 8);
		check(post(client->qp, 9, kinds[without].opcode, kinds[without].length) == 0);
		/* A Write has completed as soon as TCP has it. */
		check(next_of(sent).status == IBV_WC_REM_ACCESS_ERR || without == 0);
		event(RDMA_CM_EVENT_DISCONNECTED, NULL);
		event(RDMA_CM_EVENT_DISCONNECTED, NULL);
		check(room[1024] == 7 && room[1031] == 7 && room[0] == 1);
	}
}

#define KEPT (IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | \
	      IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | \
	      IBV_QP_MAX_DEST_RD_ATOMIC)

static void keeps(struct ibv_qp *qp, struct ibv_qp_attr *wanted)
{
	struct ibv_qp_attr found = attributes(qp);

	check(found.qp_access_flags == wanted->qp_access_flags && found.path_mtu == wanted->path_mtu);
	check(found.timeout == wanted->timeout && found.retry_cnt == wanted->retry_cnt);
	check(found.rnr_retry == wanted->rnr_retry && found.min_rnr_timer == wanted->min_rnr_timer);
	check(found.port_num == 1 && found.pkey_index == 0);
	check(found.cap.max_send_wr == PLACES && found.cap.max_recv_wr == PLACES);
}

/* What was set can be asked for; what is wrong is refused and changes nothing. */
static void set_and_asked(void)
{
	struct ibv_qp_attr wanted = { .qp_state = IBV_QPS_INIT, .qp_access_flags = IBV_ACCESS_REMOTE_READ,
				      .path_mtu = IBV_MTU_512, .timeout = 14, .retry_cnt = 6, .rnr_retry = 5,
				      .min_rnr_timer = 12, .max_rd_atomic = 3, .max_dest_rd_atomic = 2, .port_num = 1 };
	struct ibv_qp_attr wrong[10];
	static const int masks[10] = { IBV_QP_PORT, IBV_QP_PKEY_INDEX, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT,
				       IBV_QP_RNR_RETRY, IBV_QP_MIN_RNR_TIMER, IBV_QP_ACCESS_FLAGS, IBV_QP_STATE,
				       IBV_QP_CUR_STATE };
	struct ibv_qp_attr found;

	listens();
	client = resolved(PORT);
	check(ibv_modify_qp(client->qp, &wanted, IBV_QP_STATE | KEPT) == 0);
	keeps(client->qp, &wanted);
	found = attributes(client->qp);
	check(found.max_rd_atomic == 3 && found.max_dest_rd_atomic == 2);

	for (int which = 0; which < 10; which++) {
		wrong[which] = wanted;
		wrong[which].retry_cnt = 1;
	}
	wrong[0].port_num = 2;
	wrong[1].pkey_index = 1;
	wrong[2].path_mtu = 9;
	wrong[3].timeout = 32;
	wrong[4].retry_cnt = 8;
	wrong[5].rnr_retry = 8;
	wrong[6].min_rnr_timer = 32;
	wrong[7].qp_access_flags = 1 << 30;
	wrong[8].qp_state = 17;
	wrong[9].cur_qp_state = IBV_QPS_RTS;
	for (int which = 0; which < 10; which++) {
		check(ibv_modify_qp(client->qp, &wrong[which], masks[which] | IBV_QP_RETRY_CNT) == EINVAL);
		keeps(client->qp, &wanted);
	}
	check(ibv_modify_qp(client->qp, &wanted, IBV_QP_QKEY) == EINVAL);
	check(ibv_modify_qp(client->qp, &wanted, IBV_QP_DEST_QPN) == EINVAL);
	check(ibv_modify_qp(client->qp, &wanted, 1 << 30) == EINVAL);
	check(ibv_modify_qp(client->qp, &wanted, IBV_QP_CAP) == EOPNOTSUPP);
	check(moved(client->qp, IBV_QPS_SQD) == EINVAL);

	/* The peer serves as many as are asked for, unless it serves none. */
	check(connects(2) == 4);
	keeps(client->qp, &wanted);
	found = attributes(client->qp);
	check(found.qp_state == IBV_QPS_RTS && found.max_rd_atomic == 4 && found.max_dest_rd_atomic == 4);
	check(moved(client->qp, IBV_QPS_RESET) == 0 && moved(client->qp, IBV_QPS_INIT) == 0);
	check(attributes(client->qp).timeout == 0);
}

/* The completion of a Write with immediate says how long it was. */
static void length(void)
{
	static const uint32_t lengths[] = { 0, 1, 7, 4096 };
	struct ibv_wc found;

	connected();
	for (int which = 0; which < 4; which++) {
		check(receive(server->qp, which) == 0);
		check(post(client->qp, 9, IBV_WR_RDMA_WRITE_WITH_IMM, lengths[which]) == 0);
		found = next_of(received);
		check(found.wr_id == (uint64_t)which && found.status == IBV_WC_SUCCESS);
		check(found.opcode == IBV_WC_RECV_RDMA_WITH_IMM && found.byte_len == lengths[which]);
		check((found.wc_flags & IBV_WC_WITH_IMM) && found.imm_data == htonl(0x01020304));
		check(next_of(sent).status == IBV_WC_SUCCESS);
	}
	check(receive(server->qp, 5) == 0);
	check(post(client->qp, 9, IBV_WR_SEND_WITH_IMM, 0) == 0);
	found = next_of(received);
	check(found.opcode == IBV_WC_RECV && found.byte_len == 0 && found.imm_data == htonl(0x01020304));
	check(post(client->qp, 9, IBV_WR_RDMA_WRITE_WITH_IMM, 1u << 31) == EINVAL);
	/* rdma_cm has agreed on no immediate data beside octets. */
	check(post(client->qp, 9, IBV_WR_SEND_WITH_IMM, 1) == EOPNOTSUPP);
}

/* Whoever serves no Reads is not read. */
static void reads(void)
{
	listens();
	client = resolved(PORT);
	check(connects(0) == 0);
	check(attributes(server->qp).max_dest_rd_atomic == 0 && attributes(client->qp).max_rd_atomic == 0);
	one_message();
	memset(room, 1, 8);
	memset(room + 1024, 2, 8);
	check(post(client->qp, 1, IBV_WR_RDMA_READ, 8) == 0);
	check(next_of(sent).status != IBV_WC_SUCCESS && room[0] == 1);
}

/* The place of a receive is free when its completion is there. */
static void places(void)
{
	connected();
	for (int number = 0; number < PLACES; number++)
		check(receive(server->qp, number) == 0);
	for (int round = 0; round < 5000; round++) {
		for (int number = 0; number < PLACES; number++)
			check(post(client->qp, number, IBV_WR_SEND, 16) == 0);
		for (int number = 0; number < PLACES; number++) {
			struct ibv_wc found = next_of(received);

			check(found.status == IBV_WC_SUCCESS);
			check(receive(server->qp, found.wr_id) == 0);
		}
		for (int number = 0; number < PLACES; number++)
			check(next_of(sent).status == IBV_WC_SUCCESS);
	}
}

/* The port's GIDs have the own addresses, and every call says the same of them. */
static void gids(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_gid_entry table[16], entry;
	struct ibv_port_attr port;
	union ibv_gid mapped = { .raw = { [10] = 0xff, [11] = 0xff } }, gid;
	int count = 0;

	ibv_free_device_list(list);
	check(context != NULL);
	check(inet_pton(AF_INET, address, mapped.raw + 12) == 1);
	check(ibv_query_port(context, 1, &port) == 0);
	check(ibv_query_gid_table(context, table, 16, 0) == port.gid_tbl_len);
	for (int index = 0; index < port.gid_tbl_len; index++) {
		check(ibv_query_gid(context, 1, index, &gid) == 0);
		check(ibv_query_gid_ex(context, 1, index, &entry, 0) == 0);
		check(memcmp(&gid, &entry.gid, sizeof(gid)) == 0 && memcmp(&entry, &table[index], sizeof(entry)) == 0);
		check(entry.gid_index == (uint32_t)index && entry.port_num == 1);
		count += memcmp(&gid, &mapped, sizeof(gid)) == 0;
	}
	check(count == 1);
	check(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1);
	check(ibv_query_gid_ex(context, 1, port.gid_tbl_len, &entry, 0) == EINVAL);
	check(ibv_query_gid_table(context, table, port.gid_tbl_len - 1, 0) == -EINVAL);
	check(ibv_close_device(context) == 0);
}

/* The device of rdma_cm can be closed when the program has no object of it any more, and identifiers come as before. */
static void closed(void)
{
	int count;
	struct ibv_context **list = rdma_get_devices(&count), *context;

	check(list != NULL && count == 1);
	context = list[0];
	listens();
	client = resolved(PORT);
	check(client->verbs == context && ibv_close_device(context) == EBUSY);
	check(ibv_dealloc_pd(client->pd) == EBUSY);
	rdma_destroy_qp(client);
	check(rdma_destroy_id(client) == 0);
	check(ibv_dereg_mr(region) == 0);
	check(ibv_destroy_cq(sent) == 0 && ibv_destroy_cq(received) == 0 && ibv_dealloc_pd(domain) == 0);
	rdma_free_devices(list);
	check(ibv_close_device(context) == 0);
	domain = NULL;
	client = resolved(PORT);
	check(connects(4) == 4);
	one_message();
}

int main(int count, char **words)
{
	static const struct { const char *name; void (*run)(void); } tests[] = {
		{ "unconnected", unconnected }, { "failed", failed }, { "fence", fence }, { "attributes", set_and_asked },
		{ "length", length }, { "reads", reads }, { "places", places }, { "gids", gids }, { "close", closed },
	};

	if (count != 3)
		return 2;
	address = words[2];
	check((events = rdma_create_event_channel()) != NULL);
	for (size_t which = 0; which < sizeof(tests) / sizeof(tests[0]); which++) {
		if (strcmp(words[1], tests[which].name) == 0) {
			tests[which].run();
			printf("%s: right\n", words[1]);
			return 0;
		}
	}
	fprintf(stderr, "there is no test '%s'\n", words[1]);
	return 2;
}
