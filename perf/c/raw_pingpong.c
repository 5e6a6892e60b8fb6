/*
 * A ping-pong of single frames between two processes over a DPDK device, in C with DPDK's own inline functions: the
 * reference for `uwarp-perf raw-latency` and for the example of the same name in the crate uwarp-dpdk.
 *
 *   cc -O3 -o raw_pingpong raw_pingpong.c $(pkg-config --cflags --libs libdpdk)
 *   ./raw_pingpong --device memif|memif-zero-copy|virtio|virtio-packed [--size 64] [--iterations 1000000] [--cpus A,B]
 *
 * Prints one line of JSON. Latencies are full round trips, in nanoseconds.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_version.h>

#define BURST 32
#define WARM_UP 20000

struct settings {
	const char *device;
	unsigned size;
	unsigned long iterations;
	int cpus[2];
	char directory[32];
	char socket[64];
};

static void die(const char *what)
{
	fprintf(stderr, "raw_pingpong: %s\n", what);
	exit(1);
}

static void pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		die("cannot pin to that CPU");
}

/* Starts DPDK with one end of the pair, brings the link up, and returns the pool. */
static struct rte_mempool *start(const struct settings *s, int server)
{
	char vdev[256], lcores[32], prefix[32];
	int cpu = s->cpus[server], i;
	char *arguments[] = { "raw_pingpong", "--no-pci", "--no-huge", "--no-shconf",
#if RTE_VERSION < RTE_VERSION_NUM(25, 11, 0, 0)
			      /* Implied by --no-huge, and refused beside it since. */
			      "--single-file-segments",
#endif
			      "--iova-mode=va", "--no-telemetry", "--log-level=error", "-m", "256", "--file-prefix", prefix,
			      lcores, vdev, NULL };
	struct rte_eth_conf configuration = { 0 };
	struct rte_eth_link link = { 0 };
	struct rte_mempool *pool;
	int memif = strncmp(s->device, "memif", 5) == 0;

	snprintf(prefix, sizeof(prefix), "pingpong-%d", getpid());
	/* Pins this thread to the CPU. Without one, to the first two, between which the scheduler chooses. */
	if (cpu >= 0)
		snprintf(lcores, sizeof(lcores), "--lcores=0@%d", cpu);
	else
		snprintf(lcores, sizeof(lcores), "--lcores=0@(0,1)");
	if (memif)
		snprintf(vdev, sizeof(vdev), "--vdev=net_memif0,role=%s,id=0,bsize=2048,rsize=10,socket=%s,socket-abstract=no%s",
			 server ? "server" : "client", s->socket,
			 !server && strcmp(s->device, "memif-zero-copy") == 0 ? ",zero-copy=yes" : "");
	else if (server)
		snprintf(vdev, sizeof(vdev), "--vdev=net_vhost0,iface=%s,queues=1", s->socket);
	else
		snprintf(vdev, sizeof(vdev), "--vdev=net_virtio_user0,path=%s,queues=1,queue_size=1024%s", s->socket,
			 strcmp(s->device, "virtio-packed") == 0 ? ",packed_vq=1" : "");
	if (!server)
		for (i = 0; access(s->socket, F_OK) != 0; i++) {
			if (i == 10000)
				die("the other process did not start");
			usleep(1000);
		}
	if (!server && !memif)
		usleep(300000); /* the file exists before the socket listens */
	if (rte_eal_init(sizeof(arguments) / sizeof(*arguments) - 1, arguments) < 0)
		die("rte_eal_init failed");
	rmdir(rte_eal_get_runtime_dir()); /* it is empty */
	pool = rte_pktmbuf_pool_create("pool", 4095, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	if (pool == NULL || rte_eth_dev_configure(0, 1, 1, &configuration) != 0 ||
	    rte_eth_rx_queue_setup(0, 0, 1024, 0, NULL, pool) != 0 || rte_eth_tx_queue_setup(0, 0, 1024, 0, NULL) != 0)
		die("the device cannot be set up");
	for (i = 0; rte_eth_dev_start(0) != 0; i++) {
		if (i == 1000)
			die("the device does not start");
		usleep(10000);
	}
	for (i = 0; link.link_status != RTE_ETH_LINK_UP; i++) {
		if (i == 10000)
			die("the link does not come up");
		rte_eth_link_get_nowait(0, &link);
		usleep(1000);
	}
	return pool;
}

static void serve(void)
{
	struct rte_mbuf *packets[BURST];
	uint16_t received, sent;

	for (;;) {
		received = rte_eth_rx_burst(0, 0, packets, BURST);
		for (sent = 0; sent < received;)
			sent += rte_eth_tx_burst(0, 0, packets + sent, received - sent);
	}
}

static uint64_t round_trip(struct rte_mempool *pool, unsigned size, uint64_t number)
{
	static const uint8_t header[14] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	uint64_t begin = rte_rdtsc(), back, patience = begin + 10 * rte_get_tsc_hz();
	struct rte_mbuf *packets[BURST], *packet = rte_pktmbuf_alloc(pool);
	uint16_t received, i;
	char *data;
	int found = 0;

	if (packet == NULL)
		die("the pool is empty");
	data = rte_pktmbuf_append(packet, size);
	memcpy(data, header, sizeof(header));
	memset(data + 14, 0, size - 14);
	memcpy(data + 14, &number, sizeof(number));
	while (rte_eth_tx_burst(0, 0, &packet, 1) == 0)
		;
	while (!found) {
		received = rte_eth_rx_burst(0, 0, packets, BURST);
		for (i = 0; i < received; i++) {
			memcpy(&back, rte_pktmbuf_mtod(packets[i], char *) + 14, sizeof(back));
			found |= back == number;
			rte_pktmbuf_free(packets[i]);
		}
		if (received == 0 && rte_rdtsc() > patience)
			die("no frame came back in ten seconds");
	}
	return rte_rdtsc() - begin;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	struct settings s = { .device = "virtio", .size = 64, .iterations = 1000000, .cpus = { -1, -1 } };
	struct rte_mempool *pool;
	unsigned long i;
	uint32_t *samples;
	double per_ns;
	pid_t child;

	for (i = 1; i + 1 < (unsigned long)argc; i += 2) {
		if (strcmp(argv[i], "--device") == 0)
			s.device = argv[i + 1];
		else if (strcmp(argv[i], "--size") == 0)
			s.size = strtoul(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--iterations") == 0)
			s.iterations = strtoul(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--cpus") == 0 && sscanf(argv[i + 1], "%d,%d", &s.cpus[0], &s.cpus[1]) != 2)
			die("--cpus wants two numbers");
	}
	if (s.size < 22 || s.size > 1514 || s.iterations == 0)
		die("--size is 22 to 1514, --iterations at least 1");
	strcpy(s.directory, "/tmp/uwcXXXXXX");
	if (mkdtemp(s.directory) == NULL)
		die("no temporary directory");
	snprintf(s.socket, sizeof(s.socket), "%s/s", s.directory);

	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(s.cpus[1]);
		start(&s, 1);
		serve();
	}
	signal(SIGPIPE, SIG_IGN);
	pin(s.cpus[0]);
	pool = start(&s, 0);
	samples = malloc(s.iterations * sizeof(*samples));
	if (samples == NULL)
		die("no memory for the samples");
	for (i = 0; i < WARM_UP; i++)
		round_trip(pool, s.size, i);
	for (i = 0; i < s.iterations; i++)
		samples[i] = round_trip(pool, s.size, WARM_UP + i);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	unlink(s.socket);
	rmdir(s.directory);

	per_ns = rte_get_tsc_hz() / 1e9;
	qsort(samples, s.iterations, sizeof(*samples), compare);
#define AT(share) (samples[(unsigned long)((s.iterations - 1) * (share))] / per_ns)
	printf("{\"test\":\"raw-latency\",\"program\":\"c\",\"device\":\"%s\",\"size\":%u,\"iterations\":%lu,"
	       "\"latency_ns\":{\"min\":%.0f,\"p50\":%.0f,\"p99\":%.0f,\"p99_9\":%.0f,\"max\":%.0f}}\n",
	       s.device, s.size, s.iterations, AT(0), AT(0.5), AT(0.99), AT(0.999), AT(1));
	fflush(stdout);
	/* Without tearing DPDK down: the other end is dead. */
	_exit(0);
}
