/* The input of bindgen. Constants that DPDK defines as function-like macros get names that bindgen can evaluate. */
#include <rte_config.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_alarm.h>
#include <rte_bus_vdev.h>
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
static const uint64_t UWARP_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t UWARP_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t UWARP_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t UWARP_TX_TCP_CKSUM = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t UWARP_TX_TCP_SEG = RTE_MBUF_F_TX_TCP_SEG;
static const uint64_t UWARP_TX_L4_MASK = RTE_MBUF_F_TX_L4_MASK;
static const uint64_t UWARP_MBUF_INDIRECT = RTE_MBUF_F_INDIRECT;
static const uint64_t UWARP_MBUF_EXTERNAL = RTE_MBUF_F_EXTERNAL;

static const size_t UWARP_MBUF_SIZE = sizeof(struct rte_mbuf);
static const size_t UWARP_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr);
static const size_t UWARP_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off);
static const size_t UWARP_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt);
static const size_t UWARP_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs);
static const size_t UWARP_MBUF_PORT = offsetof(struct rte_mbuf, port);
static const size_t UWARP_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags);
static const size_t UWARP_MBUF_PACKET_TYPE = offsetof(struct rte_mbuf, packet_type);
static const size_t UWARP_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len);
static const size_t UWARP_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len);
static const size_t UWARP_MBUF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci);
static const size_t UWARP_MBUF_VLAN_TCI_OUTER = offsetof(struct rte_mbuf, vlan_tci_outer);
static const size_t UWARP_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len);
static const size_t UWARP_MBUF_POOL = offsetof(struct rte_mbuf, pool);
static const size_t UWARP_MBUF_NEXT = offsetof(struct rte_mbuf, next);
static const size_t UWARP_MBUF_TX_OFFLOAD = offsetof(struct rte_mbuf, tx_offload);

static const uint64_t UWARP_ETH_RX_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t UWARP_ETH_RX_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t UWARP_ETH_RX_UDP_CKSUM = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
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
static const uint32_t UWARP_EVENT_INTR_LSC = RTE_ETH_EVENT_INTR_LSC;
static const uint32_t UWARP_EVENT_QUEUE_STATE = RTE_ETH_EVENT_QUEUE_STATE;
static const uint32_t UWARP_MQ_RX_RSS = RTE_ETH_MQ_RX_RSS;
