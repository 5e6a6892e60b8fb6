//! What bindgen makes of DPDK's headers, and the packet header, which it cannot make for all versions. Each names the
//! other.

use core::ffi::c_void;

pub use generated::*;

#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unnecessary_transmutes)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    use super::rte_mbuf;

    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

/// `struct rte_mbuf`, flat.
///
/// DPDK 24.11 has most of its fields in anonymous unions, which bindgen numbers, and 22.11 has not. The layout is the
/// same in both, and is compared with the C header at compile time.
#[allow(non_camel_case_types, missing_docs)]
#[derive(Debug)]
#[repr(C, align(64))]
pub struct rte_mbuf {
    pub buf_addr: *mut c_void,
    _buf_iova: u64,
    pub data_off: u16,
    /// Atomic once the buffer is shared, see [`reference_count`](crate::fast::reference_count).
    pub refcnt: u16,
    pub nb_segs: u16,
    pub port: u16,
    pub ol_flags: u64,
    pub packet_type: u32,
    pub pkt_len: u32,
    pub data_len: u16,
    pub vlan_tci: u16,
    _hash: [u32; 2],
    pub vlan_tci_outer: u16,
    pub buf_len: u16,
    pub pool: *mut rte_mempool,
    pub next: *mut rte_mbuf,
    pub tx_offload: u64,
    _rest: [u64; 6],
}

/// Compares offsets with the constants that `shim/bindings.h` takes from C.
macro_rules! same_offsets {
    ($($field:ident = $c:ident),+ $(,)?) => {
        const _: () = {
            $(assert!(
                core::mem::offset_of!(rte_mbuf, $field) == generated::$c,
                concat!("this DPDK's struct rte_mbuf has its field ", stringify!($field), " elsewhere: adapt stack/dpdk-sys/src/bindings.rs")
            );)+
        };
    };
}
same_offsets!(
    buf_addr = UWARP_MBUF_BUF_ADDR,
    data_off = UWARP_MBUF_DATA_OFF,
    refcnt = UWARP_MBUF_REFCNT,
    nb_segs = UWARP_MBUF_NB_SEGS,
    port = UWARP_MBUF_PORT,
    ol_flags = UWARP_MBUF_OL_FLAGS,
    packet_type = UWARP_MBUF_PACKET_TYPE,
    pkt_len = UWARP_MBUF_PKT_LEN,
    data_len = UWARP_MBUF_DATA_LEN,
    vlan_tci = UWARP_MBUF_VLAN_TCI,
    vlan_tci_outer = UWARP_MBUF_VLAN_TCI_OUTER,
    buf_len = UWARP_MBUF_BUF_LEN,
    pool = UWARP_MBUF_POOL,
    next = UWARP_MBUF_NEXT,
    tx_offload = UWARP_MBUF_TX_OFFLOAD,
);
const _: () = assert!(size_of::<rte_mbuf>() == generated::UWARP_MBUF_SIZE);
