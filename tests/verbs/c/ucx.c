// Two processes that exchange data by UCX and check all of it: messages with tags, active messages, puts, gets and
// atomics, in sizes from one octet to four mebibytes. They connect by an address of the host ("listener"), or by the
// addresses of their workers ("worker").
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { LARGEST = 4 << 20, ADDS = 500, AM_ID = 7 };
static const size_t SIZES[] = {1, 64, 1000, 8192, 65537, 1 << 20, LARGEST};
enum { COUNT = sizeof SIZES / sizeof *SIZES };

static int rank, side;
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoint;
// The first part is written by the peer and the second read by it; a counter is behind them.
static uint8_t *memory;
static uint64_t base_of_peer;
static ucp_rkey_h key_of_peer;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%d: %s:%d: %s (errno %d)\n", rank, __FILE__, __LINE__, #what, errno); \
            exit(1); \
        } \
    } while (0)

static void good(ucs_status_t status, const char *what) {
    if (status != UCS_OK) {
        fprintf(stderr, "%d: %s: %s\n", rank, what, ucs_status_string(status));
        exit(1);
    }
}

static void await(void *request, const char *what) {
    if (request == NULL) return;
    if (UCS_PTR_IS_ERR(request)) good(UCS_PTR_STATUS(request), what);
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) ucp_worker_progress(worker);
    ucp_request_free(request);
    good(status, what);
}

// The kernel's way to the peer, which starts nothing and ends nothing.
static void to_peer(const void *octets, size_t length) { CHECK(write(side, octets, length) == (ssize_t)length); }

static void from_peer(void *octets, size_t length) {
    for (size_t had = 0; had < length;) {
        ssize_t now = read(side, (char *)octets + had, length - had);
        CHECK(now > 0 || (now < 0 && errno == EAGAIN));
        if (now > 0) had += now;
        ucp_worker_progress(worker);
    }
}

static void meet(void) {
    char octet = 0;
    to_peer(&octet, 1);
    from_peer(&octet, 1);
}

static uint8_t octet_of(int from, size_t size, size_t at) { return (uint8_t)(from * 131 + size * 7 + at * 13 + (at >> 8)); }

static void fill(uint8_t *octets, size_t size) {
    for (size_t at = 0; at < size; at++) octets[at] = octet_of(rank, size, at);
}

static void compare(const uint8_t *octets, size_t size, const char *what) {
    for (size_t at = 0; at < size; at++) {
        if (octets[at] != octet_of(!rank, size, at)) {
            fprintf(stderr, "%d: %s of %zu octets: wrong at %zu\n", rank, what, size, at);
            exit(1);
        }
    }
}

static uint8_t *sent, *received;
static size_t arrived;

static ucs_status_t on_message(void *unused, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *parameters) {
    (void)unused, (void)header, (void)header_length;
    CHECK(length <= LARGEST);
    if (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        ucp_request_param_t none = {0};
        void *request = ucp_am_recv_data_nbx(worker, data, received, length, &none);
        // Its progress is the caller's, who waits for all of it.
        if (request != NULL) {
            CHECK(!UCS_PTR_IS_ERR(request));
            ucp_request_free(request);
        }
    } else {
        memcpy(received, data, length);
    }
    arrived = length;
    return UCS_OK;
}

static void tagged(size_t size) {
    ucp_request_param_t none = {0};
    fill(sent, size);
    void *receive = ucp_tag_recv_nbx(worker, received, size, size, (ucp_tag_t)-1, &none);
    await(ucp_tag_send_nbx(endpoint, sent, size, size, &none), "tag_send");
    await(receive, "tag_recv");
    compare(received, size, "a message with a tag");
    meet();
}

static void active(size_t size) {
    ucp_request_param_t none = {0};
    fill(sent, size);
    arrived = 0;
    meet();
    await(ucp_am_send_nbx(endpoint, AM_ID, NULL, 0, sent, size, &none), "am_send");
    while (arrived == 0) ucp_worker_progress(worker);
    // The sender's request ends when its memory was read, so both have everything then.
    meet();
    CHECK(arrived == size);
    compare(received, size, "an active message");
    meet();
}

static void flush(void) {
    ucp_request_param_t none = {0};
    await(ucp_ep_flush_nbx(endpoint, &none), "flush");
}

static void one_sided(size_t size) {
    ucp_request_param_t none = {0};
    fill(sent, size);
    fill(memory + LARGEST, size);
    memset(memory, 0, size);
    meet();
    await(ucp_put_nbx(endpoint, sent, size, base_of_peer, key_of_peer, &none), "put");
    flush();
    // What is flushed is there, whatever way the news takes.
    meet();
    compare(memory, size, "a put");
    await(ucp_get_nbx(endpoint, received, size, base_of_peer + LARGEST, key_of_peer, &none), "get");
    compare(received, size, "a get");
    meet();
}

static uint64_t atomic(ucp_atomic_op_t operation, uint64_t value, uint64_t reply) {
    ucp_request_param_t with = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER,
                                .datatype = ucp_dt_make_contig(sizeof value), .reply_buffer = &reply};
    await(ucp_atomic_op_nbx(endpoint, operation, &value, 1, base_of_peer + 2 * LARGEST, key_of_peer, &with), "atomic");
    return reply;
}

// Each adds to the other's counter, and then exchanges it.
static void atomics(void) {
    uint64_t *counter = (uint64_t *)(memory + 2 * LARGEST);
    *counter = 0;
    meet();
    for (uint64_t count = 0; count < ADDS; count++) CHECK(atomic(UCP_ATOMIC_OP_ADD, 3, 0) == 3 * count);
    meet();
    CHECK(*(volatile uint64_t *)counter == 3 * ADDS);
    CHECK(atomic(UCP_ATOMIC_OP_CSWAP, 1, 7) == 3 * ADDS);
    CHECK(atomic(UCP_ATOMIC_OP_CSWAP, 3 * ADDS, 7) == 3 * ADDS);
    meet();
    CHECK(*(volatile uint64_t *)counter == 7);
}

static ucp_listener_h listener;
static ucp_conn_request_h asked;

static void on_connection(ucp_conn_request_h request, void *unused) {
    (void)unused;
    asked = request;
}

static void connect_by_listener(const char *address) {
    struct sockaddr_in place = {.sin_family = AF_INET};
    CHECK(inet_pton(AF_INET, address, &place.sin_addr) == 1);
    ucp_ep_params_t wanted = {0};
    if (rank == 0) {
        ucp_listener_params_t offered = {
            .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
            .sockaddr = {(struct sockaddr *)&place, sizeof place}, .conn_handler = {on_connection, NULL}};
        good(ucp_listener_create(worker, &offered, &listener), "listener");
        ucp_listener_attr_t made = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
        good(ucp_listener_query(listener, &made), "the listener's port");
        to_peer(&((struct sockaddr_in *)&made.sockaddr)->sin_port, sizeof place.sin_port);
        while (asked == NULL) ucp_worker_progress(worker);
        wanted.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
        wanted.conn_request = asked;
    } else {
        from_peer(&place.sin_port, sizeof place.sin_port);
        wanted.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
        wanted.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
        wanted.sockaddr = (ucs_sock_addr_t){(struct sockaddr *)&place, sizeof place};
    }
    good(ucp_ep_create(worker, &wanted, &endpoint), "endpoint");
}

static void connect_by_worker(void) {
    ucp_address_t *own;
    size_t length, length_of_peer;
    good(ucp_worker_get_address(worker, &own, &length), "the worker's address");
    to_peer(&length, sizeof length);
    to_peer(own, length);
    from_peer(&length_of_peer, sizeof length_of_peer);
    ucp_address_t *peer = malloc(length_of_peer);
    from_peer(peer, length_of_peer);
    ucp_ep_params_t wanted = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = peer};
    good(ucp_ep_create(worker, &wanted, &endpoint), "endpoint");
    ucp_worker_release_address(worker, own);
    free(peer);
}

static void exchange_memory(ucp_mem_h mapped) {
    void *key;
    size_t length, length_of_peer;
    uint64_t base = (uint64_t)(uintptr_t)memory;
    good(ucp_rkey_pack(context, mapped, &key, &length), "key");
    to_peer(&base, sizeof base);
    to_peer(&length, sizeof length);
    to_peer(key, length);
    ucp_rkey_buffer_release(key);
    from_peer(&base_of_peer, sizeof base_of_peer);
    from_peer(&length_of_peer, sizeof length_of_peer);
    key = malloc(length_of_peer);
    from_peer(key, length_of_peer);
    good(ucp_ep_rkey_unpack(endpoint, key, &key_of_peer), "the peer's key");
    free(key);
}

static int run(const char *way, const char *address) {
    ucp_params_t of_context = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                               .features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_AMO64};
    ucp_worker_params_t of_worker = {0};
    good(ucp_init(&of_context, NULL, &context), "context");
    good(ucp_worker_create(context, &of_worker, &worker), "worker");
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
                                      .id = AM_ID, .cb = on_message};
    good(ucp_worker_set_am_recv_handler(worker, &handler), "handler");
    size_t length = 2 * LARGEST + 4096;
    CHECK(posix_memalign((void **)&memory, 4096, length) == 0);
    memset(memory, 0, length);
    CHECK((sent = malloc(LARGEST)) != NULL && (received = malloc(LARGEST)) != NULL);
    ucp_mem_map_params_t of_memory = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                      .address = memory, .length = length};
    ucp_mem_h mapped;
    good(ucp_mem_map(context, &of_memory, &mapped), "memory");
    if (strcmp(way, "worker") == 0) {
        connect_by_worker();
    } else {
        connect_by_listener(address);
    }
    exchange_memory(mapped);
    for (int index = 0; index < COUNT; index++) {
        tagged(SIZES[index]);
        active(SIZES[index]);
        one_sided(SIZES[index]);
    }
    atomics();
    if (rank == 0) ucp_ep_print_info(endpoint, stdout);
    meet();
    ucp_request_param_t none = {0};
    ucp_rkey_destroy(key_of_peer);
    // Either side may close first: the other one's flush fails then.
    if (rank == 0) await(ucp_ep_close_nbx(endpoint, &none), "close");
    meet();
    ucp_mem_unmap(context, mapped);
    if (listener != NULL) ucp_listener_destroy(listener);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    printf("%d: all data is right\n", rank);
    return 0;
}

int main(int count, char **words) {
    if (count < 2) {
        fprintf(stderr, "usage: %s worker | listener ADDRESS\n", words[0]);
        return 2;
    }
    int pair[2], status;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    rank = child == 0;
    side = pair[rank];
    close(pair[!rank]);
    CHECK(fcntl(side, F_SETFL, O_NONBLOCK) == 0);
    if (run(words[1], count > 2 ? words[2] : "127.0.0.1") != 0) return 1;
    if (child == 0) return 0;
    CHECK(waitpid(child, &status, 0) == child);
    return status == 0 ? 0 : 1;
}
