//! Whom a queue pair is to be connected to, and as whom: the addresses that GIDs and LIDs name.

use crate::abi::ibv_ah_attr;
use crate::errno::{EINVAL, Errno};
use crate::process;
use crate::verbs::device;
use std::net::IpAddr;
use uwarp_verbs_device::Shape;

/// The own address and the peer's that an address vector names. One without a global route names this host by its LID.
pub(crate) fn addresses(vector: &ibv_ah_attr) -> Result<(IpAddr, IpAddr), Errno> {
    let own = device::addresses(&process::process()?.context);
    if vector.port_num != 1 {
        return Err(EINVAL);
    }
    if vector.is_global == 0 {
        let first = *own.first().ok_or(EINVAL)?;
        return if vector.dlid == Shape::Roce.lid() { Ok((first, first)) } else { Err(EINVAL) };
    }
    let from = *own.get(usize::from(vector.grh.sgid_index)).ok_or(EINVAL)?;
    let to = device::address_of(&vector.grh.dgid);
    if to.is_unspecified() || to.is_multicast() || to.is_ipv4() != from.is_ipv4() {
        return Err(EINVAL);
    }
    Ok((from, to))
}
