//! What all objects have: a class and a number of the program.

use crate::address_vector::AddressVector;
use crate::completion_queue::CompletionQueue;
use crate::connection::{EventQueue, Listener, MsgEndpoint, PassiveEndpoint};
use crate::counter::Counter;
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::fabric::Fabric;
use crate::region::MemoryRegion;
use crate::scalable::ScalableEndpoint;
use crate::send_budget::SendBudget;
use crate::shared_receive_queue::SharedReceiveQueue;

/// Class of an object (`fid->fclass`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// [`Fabric`].
    Fabric,
    /// [`Domain`].
    Domain,
    /// [`AddressVector`].
    AddressVector,
    /// [`CompletionQueue`].
    CompletionQueue,
    /// [`Counter`].
    Counter,
    /// [`MemoryRegion`].
    MemoryRegion,
    /// [`SendBudget`].
    SendBudget,
    /// [`SharedReceiveQueue`].
    SharedReceiveQueue,
    /// [`Endpoint`] and [`MsgEndpoint`].
    Endpoint,
    /// [`PassiveEndpoint`] and [`Listener`].
    PassiveEndpoint,
    /// [`EventQueue`].
    EventQueue,
    /// [`ScalableEndpoint`].
    ScalableEndpoint,
}

/// An object (`fid`). It is closed when its last handle is dropped, or earlier by a method `close`.
///
/// ```
/// use efa::{Class, DomainOptions, Fabric, LocalOptions, Object};
///
/// let fabric = Fabric::local(LocalOptions::default()).with_context(1);
/// let domain = fabric.domain_with(DomainOptions::new().context(2))?;
/// let objects: [&dyn Object; 2] = [&fabric, &domain];
/// assert_eq!(objects.map(|object| (object.class(), object.context())), [
///     (Class::Fabric, 1),
///     (Class::Domain, 2),
/// ]);
/// # Ok::<(), efa::Error>(())
/// ```
pub trait Object: sealed::Sealed {
    /// The class.
    fn class(&self) -> Class;

    /// The number that the program gave when it opened the object; 0 if it gave none.
    fn context(&self) -> u64;
}

mod sealed {
    /// So that methods can be added.
    pub trait Sealed {}
}

macro_rules! objects {
    ($($object:ident: $class:ident,)*) => { $(
        impl sealed::Sealed for $object {}

        impl Object for $object {
            fn class(&self) -> Class {
                Class::$class
            }

            fn context(&self) -> u64 {
                self.user_context()
            }
        }
    )* };
}

objects! {
    Fabric: Fabric,
    Domain: Domain,
    AddressVector: AddressVector,
    CompletionQueue: CompletionQueue,
    Counter: Counter,
    MemoryRegion: MemoryRegion,
    SharedReceiveQueue: SharedReceiveQueue,
    SendBudget: SendBudget,
    ScalableEndpoint: ScalableEndpoint,
    Endpoint: Endpoint,
    MsgEndpoint: Endpoint,
    PassiveEndpoint: PassiveEndpoint,
    Listener: PassiveEndpoint,
    EventQueue: EventQueue,
}
