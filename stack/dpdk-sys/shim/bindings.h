/* The input of bindgen. Constants that DPDK defines as function-like macros get names that bindgen can evaluate. */
#include <rte_config.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_ethdev.h>
#include <rte_eth_ring.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

#include "shim.h"

static const uint64_t UWARP_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t UWARP_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t UWARP_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t UWARP_RX_IP_CKSUM_NONE = RTE_MBUF_F_RX_IP_CKSUM_NONE;
static const uint64_t UWARP_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t UWARP_RX_L4_CKSUM_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t UWARP_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t UWARP_RX_L4_CKSUM_NONE = RTE_MBUF_F_RX_L4_CKSUM_NONE;
static const uint64_t UWARP_RX_RSS_HASH = RTE_MBUF_F_RX_RSS_HASH;
static const uint64_t UWARP_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t UWARP_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t UWARP_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t UWARP_TX_TCP_CKSUM = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t UWARP_TX_TCP_SEG = RTE_MBUF_F_TX_TCP_SEG;
static const uint64_t UWARP_TX_L4_MASK = RTE_MBUF_F_TX_L4_MASK;
static const uint64_t UWARP_MBUF_INDIRECT = RTE_MBUF_F_INDIRECT;
static const uint64_t UWARP_MBUF_EXTERNAL = RTE_MBUF_F_EXTERNAL;

static const uint64_t UWARP_ETH_RX_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t UWARP_ETH_RX_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t UWARP_ETH_RX_UDP_CKSUM = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t UWARP_ETH_RX_TCP_LRO = RTE_ETH_RX_OFFLOAD_TCP_LRO;
static const uint64_t UWARP_ETH_RX_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t UWARP_ETH_RX_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t UWARP_ETH_TX_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t UWARP_ETH_TX_TCP_CKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
static const uint64_t UWARP_ETH_TX_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO;
static const uint64_t UWARP_ETH_TX_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;

static const uint64_t UWARP_ETH_RSS_TCP4 = RTE_ETH_RSS_NONFRAG_IPV4_TCP;
static const uint64_t UWARP_ETH_RSS_TCP6 = RTE_ETH_RSS_NONFRAG_IPV6_TCP;

static const uint32_t UWARP_LCORE_ANY = LCORE_ID_ANY;
static const uint32_t UWARP_RING_SP_SC = RING_F_SP_ENQ | RING_F_SC_DEQ;
static const uint32_t UWARP_DEV_INTR_LSC = RTE_ETH_DEV_INTR_LSC;
static const uint32_t UWARP_MQ_RX_RSS = RTE_ETH_MQ_RX_RSS;
