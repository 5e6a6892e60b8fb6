//! Network namespaces whose programs join the switch of another one, and bring their own addresses.

use std::net::IpAddr;
use std::str::FromStr;

use uwarp::config::InterfaceAddress;
use uwarp::switch::protocol::{Guest, Namespace};

use crate::core::{MAX_ADDRESSES, NetworkId};

/// The addresses that a user's programs may bring: `UID=ADDRESS/PREFIX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    uid: u32,
    subnet: InterfaceAddress,
}

impl FromStr for Claim {
    type Err = String;

    fn from_str(text: &str) -> Result<Claim, String> {
        let parsed = text
            .split_once('=')
            .and_then(|(uid, subnet)| Some(Claim { uid: uid.parse().ok()?, subnet: subnet.parse().ok()? }));
        parsed.ok_or_else(|| "write UID=ADDRESS/PREFIX, such as 1000=10.8.0.0/24".to_owned())
    }
}

/// A namespace that has brought addresses. It keeps them behind the end of its last program, so that the peers of that
/// one are reset, until another namespace wants one of them.
#[derive(Debug)]
pub(super) struct Household {
    pub(super) id: NetworkId,
    pub(super) namespace: Namespace,
    pub(super) addresses: Vec<InterfaceAddress>,
}

impl Household {
    fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.address == address)
    }
}

/// What has to happen before a guest may come in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admission {
    /// Its network.
    pub(super) id: NetworkId,
    /// The addresses that the network is to have, if it has others now.
    pub(super) addresses: Option<Vec<InterfaceAddress>>,
    /// The networks that end: they have no program any more.
    pub(super) ended: Vec<NetworkId>,
}

/// Why a guest is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Objection {
    /// The user may not bring this address.
    Forbidden(IpAddr),
    /// The switch's own namespace has it.
    Own(IpAddr),
    /// Another namespace with programs has it.
    Held(IpAddr, NetworkId),
    /// There would be too many addresses.
    TooMany,
}

/// All such namespaces, the oldest first.
#[derive(Debug)]
pub(super) struct Guests {
    households: Vec<Household>,
    claims: Vec<Claim>,
}

impl Guests {
    pub(super) fn new(claims: Vec<Claim>) -> Guests {
        Guests { households: Vec::new(), claims }
    }

    pub(super) fn get(&self, id: NetworkId) -> Option<&Household> {
        self.households.iter().find(|household| household.id == id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Household> {
        self.households.iter()
    }

    /// Whether a user may bring an address. Without any rule, each may bring all.
    fn may_bring(&self, uid: u32, address: IpAddr) -> bool {
        self.claims.is_empty() || self.claims.iter().any(|claim| claim.uid == uid && claim.subnet.contains(address))
    }

    /// What has to happen for a user's guest to come in. `is_inhabited` says whether a network has programs. The caller
    /// has to carry it out by [`Guests::settle`].
    pub(super) fn admit(
        &self,
        uid: Option<u32>,
        guest: &Guest,
        own: &[InterfaceAddress],
        is_inhabited: impl Fn(NetworkId) -> bool,
    ) -> Result<Admission, Objection> {
        let here = self.households.iter().find(|household| household.namespace == guest.namespace);
        // Without a program, it may also be another namespace, which has got the number of one that has ended.
        let kept = here.filter(|here| is_inhabited(here.id));
        let mut addresses = kept.map(|here| here.addresses.clone()).unwrap_or_default();
        let mut ended = Vec::new();
        for wanted in &guest.addresses {
            let address = wanted.address;
            if addresses.iter().any(|known| known.address == address) {
                continue;
            }
            if own.iter().any(|own| own.address == address) {
                return Err(Objection::Own(address));
            }
            let mut others = self.households.iter().filter(|other| other.namespace != guest.namespace);
            if let Some(holder) = others.find(|household| household.has(address)) {
                if is_inhabited(holder.id) {
                    return Err(Objection::Held(address, holder.id));
                }
                ended.push(holder.id);
            }
            addresses.push(*wanted);
        }
        // Also those that others have brought: the program gets them all.
        let is_forbidden = |own: &&InterfaceAddress| uid.is_some_and(|uid| !self.may_bring(uid, own.address));
        if let Some(own) = addresses.iter().find(is_forbidden) {
            return Err(Objection::Forbidden(own.address));
        }
        let is_left = |household: &&Household| !ended.contains(&household.id);
        let others = self.households.iter().filter(is_left).filter(|other| other.namespace != guest.namespace);
        if own.len() + others.map(|other| other.addresses.len()).sum::<usize>() + addresses.len() > MAX_ADDRESSES {
            return Err(Objection::TooMany);
        }
        let id = match here {
            Some(here) => here.id,
            None => {
                let is_free = |id: &NetworkId| *id != NetworkId::OWN && self.get(*id).is_none();
                let oldest = || self.households.iter().map(|household| household.id).find(|id| !is_inhabited(*id));
                let id = NetworkId::all().find(is_free).or_else(oldest).ok_or(Objection::TooMany)?;
                if self.get(id).is_some() && !ended.contains(&id) {
                    ended.push(id);
                }
                id
            }
        };
        let is_changed = here.is_none_or(|here| here.addresses != addresses);
        Ok(Admission { id, addresses: is_changed.then_some(addresses), ended })
    }

    /// The same is so now.
    pub(super) fn settle(&mut self, namespace: Namespace, admission: Admission) {
        let Admission { id, addresses, ended } = admission;
        self.households.retain(|household| !ended.contains(&household.id));
        let Some(addresses) = addresses else { return };
        match self.households.iter_mut().find(|household| household.id == id) {
            Some(household) => household.addresses = addresses,
            None => self.households.push(Household { id, namespace, addresses }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(namespace: u64, addresses: &[&str]) -> Guest {
        Guest {
            namespace: Namespace(4, namespace),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn own() -> [InterfaceAddress; 1] {
        ["10.8.0.254/24".parse().unwrap()]
    }

    #[test]
    fn an_address_is_one_namespaces_at_a_time() {
        let mut guests = Guests::new(Vec::new());
        let first = guests.admit(Some(7), &guest(1, &["10.8.0.1/24"]), &own(), |_| false).unwrap();
        let id = first.id;
        assert!(id != NetworkId::OWN && first.ended.is_empty());
        guests.settle(Namespace(4, 1), first);
        let again = guests.admit(Some(7), &guest(1, &["10.8.0.1/24"]), &own(), |_| true).unwrap();
        assert_eq!(again, Admission { id, addresses: None, ended: Vec::new() });
        let more = guests.admit(Some(7), &guest(1, &["10.8.0.3/24"]), &own(), |_| true).unwrap();
        assert_eq!((more.id, more.addresses.as_ref().map(Vec::len)), (id, Some(2)));
        guests.settle(Namespace(4, 1), more);
        for (address, objection) in [
            ("10.8.0.1/24", Objection::Held([10, 8, 0, 1].into(), id)),
            ("10.8.0.3/16", Objection::Held([10, 8, 0, 3].into(), id)),
            ("10.8.0.254/8", Objection::Own([10, 8, 0, 254].into())),
        ] {
            assert_eq!(guests.admit(Some(7), &guest(2, &[address]), &own(), |_| true), Err(objection), "{address}");
        }
        // Its last program has ended: whoever comes with its number has the addresses of now.
        let reborn = guests.admit(Some(7), &guest(1, &["10.8.0.3/24"]), &own(), |_| false).unwrap();
        assert_eq!((reborn.id, reborn.addresses.map(|addresses| addresses.len())), (id, Some(1)));
        let next = guests.admit(Some(7), &guest(2, &["10.8.0.1/24"]), &own(), |_| false).unwrap();
        assert_eq!(next.ended, [id]);
        let next_id = next.id;
        guests.settle(Namespace(4, 2), next);
        assert_eq!(guests.iter().map(|household| household.id).collect::<Vec<_>>(), [next_id]);
    }

    #[test]
    fn a_user_brings_what_the_rules_allow() {
        let guests = Guests::new(vec!["7=10.8.0.0/24".parse().unwrap(), "8=fd08::/64".parse().unwrap()]);
        let admit = |uid, address: &str| guests.admit(uid, &guest(1, &[address]), &own(), |_| true).is_ok();
        assert!(admit(Some(7), "10.8.0.1/16") && admit(Some(8), "fd08::1/64"));
        assert!(!admit(Some(7), "10.8.1.1/16") && !admit(Some(8), "10.8.0.1/24") && !admit(Some(9), "10.8.0.1/24"));
        assert!(admit(None, "10.9.0.1/24"), "whom no rule is for");
        // One that says it is of a namespace whose addresses it may not bring.
        let mut guests = guests;
        let first = guests.admit(Some(7), &guest(1, &["10.8.0.1/24"]), &own(), |_| true).unwrap();
        guests.settle(Namespace(4, 1), first);
        let objection = Objection::Forbidden([10, 8, 0, 1].into());
        assert_eq!(guests.admit(Some(8), &guest(1, &["fd08::1/64"]), &own(), |_| true), Err(objection));
        for text in ["7", "7=", "7=10.8.0.0/33", "x=10.8.0.0/24", "=10.8.0.0/24"] {
            assert!(text.parse::<Claim>().is_err(), "{text}");
        }
    }

    #[test]
    fn namespaces_without_programs_make_way_and_addresses_are_limited() {
        let mut guests = Guests::new(Vec::new());
        let networks = NetworkId::all().count() - 1;
        for number in 0..networks {
            let guest = guest(number as u64, &[&format!("10.8.1.{number}/24")]);
            let admission = guests.admit(Some(7), &guest, &own(), |_| true).unwrap();
            guests.settle(guest.namespace, admission);
        }
        let late = guest(1000, &["10.8.2.1/24"]);
        assert_eq!(guests.admit(Some(7), &late, &own(), |_| true), Err(Objection::TooMany));
        let fifth = guests.iter().nth(5).map(|household| household.id).unwrap();
        let admission = guests.admit(Some(7), &late, &own(), |id| id != fifth).unwrap();
        assert_eq!((admission.id, &admission.ended[..]), (fifth, &[fifth][..]));
        let many: Vec<String> =
            (0..MAX_ADDRESSES).map(|number| format!("10.{}.{}.1/8", number / 256, number % 256)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(guests.admit(Some(7), &guest(0, &many), &own(), |_| true), Err(Objection::TooMany));
    }
}
