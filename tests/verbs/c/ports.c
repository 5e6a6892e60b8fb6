/*
 * TCP ports of identifiers: which one a connection leaves from, one port at several addresses, many that are bound and not
 * listened on, and connections in a row, so that ports are used again.
 *
 *   cc -o ports ports.c -lrdmacm -libverbs
 *   ./ports server ADDRESS COUNT           answers so many connections
 *   ./ports row ADDRESS COUNT              makes them, each from a port that the library chooses
 *   ./ports bound ADDRESS COUNT            the same, each from a free port that is bound before
 *   ./ports many ADDRESS COUNT             binds so many free ports at once
 *   ./ports addresses ADDRESS OTHER        listens at each of two addresses on one port; stays at the first one
 *   ./ports other ADDRESS OTHER            the same port, beside a process that listens at ADDRESS
 *
 * Exit status 0 if everything was as it has to be; otherwise a line on standard error says what was not.
 */
#include <arpa/inet.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#include "check.h"

#define PORT 7482
#define PATIENCE 50 /* seconds, of the whole program */
#define TIMEOUT 5000

/* Says who ends a connection, and to the client which port it came from. */
struct word {
	uint16_t port;
	uint8_t by_server;
} __attribute__((packed));

static struct rdma_event_channel *channel;
static struct ibv_pd *domain;
static struct ibv_cq *completions;

static struct sockaddr_storage at(const char *text, uint16_t port)
{
	struct sockaddr_storage all = { 0 };
	struct sockaddr_in *four = (struct sockaddr_in *)&all;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&all;

	if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = htons(port);
	} else {
		check(inet_pton(AF_INET6, text, &six->sin6_addr) == 1);
		six->sin6_family = AF_INET6;
		six->sin6_port = htons(port);
	}
	return all;
}

/* Also the port of an address of IPv6: it is at the same place. */
static uint16_t port_of(struct sockaddr *address)
{
	return ((struct sockaddr_in *)address)->sin_port;
}

static struct rdma_cm_id *identifier(void)
{
	struct rdma_cm_id *id;

	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	return id;
}

static int bind_to(struct rdma_cm_id *id, const char *address, uint16_t port)
{
	struct sockaddr_storage wanted = at(address, port);

	return rdma_bind_addr(id, (struct sockaddr *)&wanted);
}

static void create_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr wanted = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };

	if (!domain) {
		check((domain = ibv_alloc_pd(id->verbs)) != NULL);
		check((completions = ibv_create_cq(id->verbs, 4000, NULL, NULL, 0)) != NULL);
	}
	wanted.send_cq = wanted.recv_cq = completions;
	check(rdma_create_qp(id, domain, &wanted) == 0);
}

/* The next event; its private data if there is room for it. */
static enum rdma_cm_event_type next(struct rdma_cm_id **id, struct word *word)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type kind;

	check(rdma_get_cm_event(channel, &event) == 0);
	kind = event->event;
	if (id)
		*id = event->id;
	if (word && event->param.conn.private_data_len >= sizeof(*word))
		memcpy(word, event->param.conn.private_data, sizeof(*word));
	if (event->status)
		fprintf(stderr, "%s: %d\n", rdma_event_str(kind), event->status);
	check(rdma_ack_cm_event(event) == 0);
	return kind;
}

static void destroy(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	check(rdma_destroy_id(id) == 0);
}

static void serve(const char *address, int count)
{
	struct rdma_cm_id *listener = identifier(), *id;
	struct word word = { 0 };

	check(bind_to(listener, address, PORT) == 0);
	check(rdma_listen(listener, 128) == 0);
	check(ntohs(rdma_get_src_port(listener)) == PORT);
	while (count > 0) {
		enum rdma_cm_event_type kind = next(&id, &word);

		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct rdma_conn_param answer = { .private_data = &word, .private_data_len = sizeof(word) };

			check(ntohs(rdma_get_src_port(id)) == PORT);
			check(port_of(rdma_get_local_addr(id)) == htons(PORT));
			word.port = rdma_get_dst_port(id);
			check(word.port != 0 && word.port == port_of(rdma_get_peer_addr(id)));
			create_queue_pair(id);
			id->context = (void *)(uintptr_t)word.by_server;
			check(rdma_accept(id, &answer) == 0);
		} else if (kind == RDMA_CM_EVENT_ESTABLISHED) {
			if (id->context)
				check(rdma_disconnect(id) == 0);
		} else {
			check(kind == RDMA_CM_EVENT_DISCONNECTED);
			rdma_disconnect(id);
			destroy(id);
			count--;
		}
	}
	check(rdma_destroy_id(listener) == 0);
}

static void connect_once(const char *address, int is_bound, int by_server)
{
	struct sockaddr_storage to = at(address, PORT);
	struct rdma_cm_id *id = identifier();
	struct word word = { .by_server = by_server };
	struct rdma_conn_param wishes = { .private_data = &word, .private_data_len = sizeof(word) };
	uint16_t port = 0;

	if (is_bound) {
		check(bind_to(id, address, 0) == 0);
		check((port = rdma_get_src_port(id)) != 0);
	}
	check(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, TIMEOUT) == 0);
	check(next(NULL, NULL) == RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, TIMEOUT) == 0);
	check(next(NULL, NULL) == RDMA_CM_EVENT_ROUTE_RESOLVED);
	create_queue_pair(id);
	check(rdma_connect(id, &wishes) == 0);
	check(next(NULL, &word) == RDMA_CM_EVENT_ESTABLISHED);
	/* The port as the server sees it. */
	check(word.port != 0 && rdma_get_src_port(id) == word.port);
	check(port_of(rdma_get_local_addr(id)) == word.port);
	check(!is_bound || port == word.port);
	if (!by_server)
		check(rdma_disconnect(id) == 0);
	check(next(NULL, NULL) == RDMA_CM_EVENT_DISCONNECTED);
	destroy(id);
}

static void bind_many(const char *address, int count)
{
	for (int i = 0; i < count; i++)
		check(bind_to(identifier(), address, 0) == 0);
}

static int is_refused(const char *address)
{
	struct rdma_cm_id *id = identifier();
	int refused = bind_to(id, address, PORT) == -1 && (errno == EADDRINUSE || errno == EADDRNOTAVAIL);

	check(rdma_destroy_id(id) == 0);
	return refused;
}

static void listen_at_each(char **addresses)
{
	struct rdma_cm_id *ids[2], *any = identifier();
	int yes = 1;

	for (int i = 0; i < 2; i++) {
		ids[i] = identifier();
		check(bind_to(ids[i], addresses[i], PORT) == 0);
		check(rdma_listen(ids[i], 4) == 0);
		check(is_refused(addresses[i]));
	}
	/* All addresses of a version of IP are one too many. */
	check(is_refused("0.0.0.0"));
	check(rdma_set_option(any, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof(yes)) == 0);
	check(bind_to(any, "::", PORT) == -1);
	check(rdma_destroy_id(ids[1]) == 0);
	check(bind_to(any, "::", PORT) == 0);
	check(rdma_listen(any, 4) == 0);
	check(is_refused(addresses[1]));
	check(rdma_destroy_id(any) == 0);
	/* Another process has the second address meanwhile. */
	puts("at the first address");
	fflush(stdout);
	for (;;)
		pause();
}

static void listen_beside(char **addresses)
{
	struct rdma_cm_id *id = identifier();

	check(is_refused(addresses[0]) && is_refused("0.0.0.0"));
	check(bind_to(id, addresses[1], PORT) == 0);
	check(rdma_listen(id, 4) == 0);
	check(rdma_destroy_id(id) == 0);
}

int main(int count, char **words)
{
	int times;

	if (count != 4)
		return 2;
	alarm(PATIENCE);
	check((channel = rdma_create_event_channel()) != NULL);
	times = atoi(words[3]);
	if (!strcmp(words[1], "server"))
		serve(words[2], times);
	else if (!strcmp(words[1], "row") || !strcmp(words[1], "bound"))
		for (int i = 0; i < times; i++)
			connect_once(words[2], words[1][0] == 'b', i % 2);
	else if (!strcmp(words[1], "many"))
		bind_many(words[2], times);
	else if (!strcmp(words[1], "addresses"))
		listen_at_each(words + 2);
	else if (!strcmp(words[1], "other"))
		listen_beside(words + 2);
	else
		return 2;
	printf("%s: right\n", words[1]);
	return 0;
}
