//! Upper-layer bindings (RFC 8166 §6): which data items of a program may be moved by RDMA, and the largest size of its
//! replies.

use crate::walk::{Walk, WalkError};
use crate::xdr::padding;
use std::ops::RangeInclusive;

/// The binding of one program. It knows the program's XDR as far as needed to find DDP-eligible items, and nothing of
/// their meaning.
pub trait Binding: Send + Sync {
    /// The program's number.
    fn program(&self) -> u32;

    /// The program versions that this binding covers.
    fn versions(&self) -> RangeInclusive<u32>;

    /// Walks over a call's arguments and names the DDP-eligible items among them (RFC 8166 §6.1), in order, with
    /// [`Walk::eligible_opaque`] and [`Walk::eligible_data`]. It may stop after the last one.
    ///
    /// # Errors
    /// The arguments are not those of the procedure, or something other than those items was reduced.
    fn arguments(&self, version: u32, procedure: u32, walk: &mut Walk<'_>) -> Result<(), WalkError>;

    /// The same for the results of a call that succeeded.
    ///
    /// # Errors
    /// As for the arguments.
    fn results(&self, version: u32, procedure: u32, walk: &mut Walk<'_>) -> Result<(), WalkError>;

    /// The largest results of a call (RFC 8166 §6.2). `arguments` are its octets up to the first eligible item. `None`
    /// if the procedure or its arguments are not those of the program.
    fn greatest(&self, version: u32, procedure: u32, arguments: &[u8]) -> Option<Greatest>;
}

/// How long results can get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Greatest {
    /// Octets of everything but the data of eligible items.
    pub rest: usize,
    /// Octets of each eligible item, without padding, in order.
    pub items: Vec<u32>,
}

impl Greatest {
    /// Results without eligible items.
    pub const fn of(rest: usize) -> Self {
        Self { rest, items: Vec::new() }
    }

    /// Results with one eligible item.
    pub fn with_item(rest: usize, item: u32) -> Self {
        Self { rest, items: vec![item] }
    }

    /// Octets of the unreduced results.
    pub fn whole(&self) -> usize {
        self.items.iter().map(|&item| item as usize + padding(item as usize)).fold(self.rest, usize::saturating_add)
    }
}
