//! Address handles: where datagrams go to. Programs also find out with them which GIDs the port can send from.

use crate::abi::{IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_global_route, ibv_grh, ibv_pd, ibv_wc};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, number, pointer};
use crate::handle::{Handle, object};
use crate::process;
use crate::verbs::context::{self, next_handle};
use crate::verbs::device;
use crate::verbs::domain::Domain;
use crate::verbs::peer;
use libc::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use uwarp::GRH_LEN;

/// An address handle.
pub(crate) struct AddressHandle {
    /// The own address that datagrams leave from.
    pub(crate) from: IpAddr,
    /// Where they go to.
    pub(crate) to: IpAddr,
}
object!(AddressHandle: ibv_ah, b"ah");

fn create(pd: *mut ibv_pd, wanted: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: the caller's pointer.
    let domain = unsafe { Handle::<Domain>::get(pd)? };
    if !process::is_roce() {
        // They belong to datagrams, which iWARP does not have.
        return Err(EOPNOTSUPP);
    }
    let (from, to) = peer::addresses(wanted)?;
    let context = process::started()?;
    if context.switch_place().is_some() && !context.is_on_switch(to) {
        tracing::warn!(%to, "datagrams reach only programs of this switch, and nothing is sent to other hosts");
        return Err(Errno(libc::EHOSTUNREACH));
    }
    domain.users.fetch_add(1, Ordering::AcqRel);
    // SAFETY: our own structure.
    let context = unsafe { (*domain.public()).context };
    Ok(Handle::create(ibv_ah { context, pd, handle: next_handle() }, AddressHandle { from, to }))
}

/// The sender and the receiver that stand in front of a received datagram: in an IP header, one of IPv4 in the last
/// octets.
fn addresses_in(octets: &[u8; GRH_LEN]) -> Option<(IpAddr, IpAddr)> {
    let v6 = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(octets.get(at..at + 16)?).ok()?)));
    let v4 = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(octets.get(at..at + 4)?).ok()?)));
    match (octets[0] >> 4, octets[20]) {
        (6, _) => v6(8).zip(v6(24)),
        (0, 0x45) => v4(32).zip(v4(36)),
        _ => None,
    }
}

/// The way back to the sender of a datagram.
///
/// # Safety
/// `grh` is null, or has the octets in front of the message.
unsafe fn way_back(port: u8, wc: &ibv_wc, grh: *const ibv_grh) -> Result<ibv_ah_attr, Errno> {
    if !process::is_roce() {
        return Err(EOPNOTSUPP);
    }
    if port != 1 || wc.wc_flags & IBV_WC_GRH == 0 || grh.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: as the caller promises; the octets need not be aligned.
    let octets = unsafe { grh.cast::<[u8; GRH_LEN]>().read_unaligned() };
    let (from, to) = addresses_in(&octets).ok_or(EINVAL)?;
    let own = device::addresses(&process::process()?.context);
    let index = own.iter().position(|own| *own == to).ok_or(EINVAL)?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: device::gid_of(from),
            sgid_index: u8::try_from(index).map_err(|_| EINVAL)?,
            hop_limit: u8::MAX,
            ..ibv_global_route::default()
        },
        is_global: 1,
        port_num: port,
        ..ibv_ah_attr::default()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, wanted: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's pointer.
    pointer(|| create(pd, unsafe { wanted.as_ref().ok_or(EINVAL)? }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    out: *mut ibv_ah_attr,
) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            context::get(context)?;
            *out.as_mut().ok_or(EINVAL)? = way_back(port, wc.as_ref().ok_or(EINVAL)?, grh)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: the caller's pointers.
    pointer(|| create(pd, &unsafe { way_back(port, wc.as_ref().ok_or(EINVAL)?, grh)? }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    number(|| {
        // SAFETY: the caller's pointer.
        unsafe {
            let pd = (*Handle::<AddressHandle>::get(ah)?.public()).pd;
            Handle::<AddressHandle>::destroy(ah)?;
            Handle::<Domain>::get(pd)?.users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_in_front_of_a_datagram_are_those_of_its_ip_header() {
        let mut octets = [0; GRH_LEN];
        assert_eq!(addresses_in(&octets), None);
        octets[20] = 0x45;
        octets[32..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(addresses_in(&octets), Some(([10, 0, 0, 1].into(), [10, 0, 0, 2].into())));
        octets[0] = 0x60;
        let (from, to) = addresses_in(&octets).unwrap();
        assert!(from.is_ipv6() && to.to_string().ends_with("a00:1:a00:2"), "{from} {to}");
        octets[0] = 0x45;
        assert_eq!(addresses_in(&octets), None);
    }
}
