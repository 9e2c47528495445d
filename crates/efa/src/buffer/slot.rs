//! A buffer as the engine holds it: with the way in which an operation uses it.

use std::sync::Arc;

use efa_device::{
    Access, CopySource, CopyTarget, QueuePair, Region as _, RegionRange, RegisterError, RemoteRange,
};
use efa_rdm::Payload;

use super::{Buffer, Memory};
use crate::device::{AnyRegion, ConcreteRegion};
use crate::shared_receive_queue::Taken;

/// A buffer as the engine holds it. The buffer comes first: so it is loaded by the same words when it moves with its role
/// as when it moved alone. Loads that take parts of two stores wait until both have left the processor.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) buffer: Buffer,
    pub(crate) role: Role,
}

/// How an operation uses its buffer.
#[derive(Debug)]
pub(crate) enum Role {
    /// As a whole.
    Whole,
    /// As a whole, by an operation that completes only if it fails.
    Silent,
    /// As a whole: a vector, whose memory is in the region while the operation is under way, or lent memory, which is
    /// registered that long.
    Registered(AnyRegion),
    /// The unused rest of a multi-receive buffer.
    Rest(Parts),
    /// The part of a multi-receive buffer for one message, until the message completes.
    Part(Parts),
    /// As a whole, by a receive of a [shared queue](crate::SharedReceiveQueue).
    Taken(Taken),
}

const _: () = assert!(size_of::<Slot>() <= 56, "it is moved several times per operation");

/// Counts the parts of a multi-receive buffer whose messages have not completed: each holds a clone. `true` if messages
/// that are received are reported.
#[derive(Clone, Debug)]
pub(crate) struct Parts(Arc<bool>);

impl Parts {
    pub(crate) fn are_reported(&self) -> bool {
        *self.0
    }

    /// Whether no part is left: this is the only clone.
    pub(crate) fn are_complete(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Slot {
    pub(crate) fn whole(buffer: Buffer) -> Self {
        Self { buffer, role: Role::Whole }
    }

    /// A buffer of an operation that completes silently unless it is to be reported.
    #[inline(always)]
    pub(crate) fn reported(is_reported: bool, buffer: Buffer) -> Self {
        Self { buffer, role: if is_reported { Role::Whole } else { Role::Silent } }
    }

    pub(crate) fn for_many(is_reported: bool, buffer: Buffer) -> Self {
        Self { buffer, role: Role::Rest(Parts(Arc::new(is_reported))) }
    }

    /// Whether its operation completes only if it fails.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.role, Role::Silent)
    }

    #[inline]
    pub(crate) fn into_buffer(self) -> Buffer {
        match self.role {
            Role::Registered(region) => reclaim(region, self.buffer),
            _ => self.buffer,
        }
    }

    pub(crate) fn into_parts(self) -> (Buffer, Role) {
        match self.role {
            Role::Registered(region) => (reclaim(region, self.buffer), Role::Whole),
            role => (self.buffer, role),
        }
    }

    /// Region, offset and length of the registered range from byte `offset` on.
    fn location_from(&self, offset: u64) -> Option<(&AnyRegion, usize, usize)> {
        let skip = index(offset);
        let (region, first, length) = match (&self.role, &self.buffer.0) {
            (Role::Registered(region), _) => (region, 0, region.length()),
            (_, Memory::Region(slice)) => slice.location(),
            (_, Memory::Pieces(pieces)) => return pieces.registered_from(skip),
            _ => return None,
        };
        let skip = skip.min(length);
        Some((region, first + skip, length - skip))
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Ends the registration of a buffer and returns the memory.
fn reclaim(region: AnyRegion, buffer: Buffer) -> Buffer {
    if let Memory::Lent(_) | Memory::LentMut(_) = buffer.0 {
        if !region.revoke() {
            tracing::warn!(?region, "registered memory of the program may still be accessed");
        }
        return buffer;
    }
    match region.reclaim() {
        Ok(memory) => memory.into(),
        // The device still has a handle and may read on, so the application gets a copy.
        Err(region) => {
            let mut bytes = vec![0; region.length()];
            region.read(0, &mut bytes);
            bytes.into()
        }
    }
}

impl<R: ConcreteRegion> Payload<R> for Slot {
    #[inline]
    fn length(&self) -> u64 {
        let length = match &self.role {
            Role::Registered(region) => region.length(),
            _ => self.buffer.len(),
        };
        length as u64
    }

    #[inline]
    fn read(&self, offset: u64, into: &mut [u8]) {
        Payload::<R>::copy_to(self, offset, into.into());
    }

    #[inline(always)]
    fn write(&mut self, offset: u64, from: &[u8]) {
        Payload::<R>::copy_from(self, offset, from.into());
    }

    #[inline(always)]
    fn copy_to(&self, offset: u64, into: CopyTarget<'_>) {
        match &self.role {
            Role::Registered(region) => {
                region.copy_to(index(offset), into);
            }
            _ => self.buffer.copy_to(index(offset), into),
        }
    }

    #[inline(always)]
    fn copy_from(&mut self, offset: u64, from: CopySource<'_>) {
        match &self.role {
            Role::Registered(region) => {
                region.copy_from(index(offset), from);
            }
            _ => self.buffer.copy_from(index(offset), from),
        }
    }

    fn split_to(&mut self, at: u64) -> Self {
        let role = match &self.role {
            // The engine splits only multi-receive buffers.
            Role::Whole | Role::Silent | Role::Registered(_) | Role::Taken(_) => Role::Whole,
            Role::Rest(parts) | Role::Part(parts) => Role::Part(parts.clone()),
        };
        Self { buffer: self.buffer.split_to(index(at)), role }
    }

    fn registered(&self) -> Option<RegionRange<R>> {
        let (region, offset, length) = match &self.role {
            Role::Registered(region) => (region, 0, region.length()),
            _ => self.buffer.region()?.location(),
        };
        // An endpoint refuses memory of other domains, so this is a region of its own device.
        Some(RegionRange { region: R::from_any(region.clone())?, offset, length })
    }

    fn registered_from(&self, offset: u64) -> Option<RegionRange<R>> {
        let (region, offset, length) = self.location_from(offset)?;
        Some(RegionRange { region: R::from_any(region.clone())?, offset, length })
    }

    fn exposed_from(&self, offset: u64) -> Option<RemoteRange> {
        let (region, offset, length) = self.location_from(offset)?;
        Some(RemoteRange::of(region, offset, length))
    }

    fn is_mapped(&self) -> bool {
        matches!(&self.buffer.0, Memory::Region(slice) if slice.region().is_mapped())
    }

    fn register(&mut self, device: &impl QueuePair<Region = R>, access: Access) -> bool {
        // One that completes silently, or is of a shared queue, stays unregistered: its operation goes in packets.
        let Role::Whole = self.role else { return false };
        let registered = match &mut self.buffer.0 {
            Memory::Vec(vector) => {
                let registered = device.register(std::mem::take(vector).into(), access);
                registered.map_err(|RegisterError { memory, .. }| *vector = memory.into()).ok()
            }
            Memory::Lent(bytes) => device.register_lent(bytes.lending(), access).ok(),
            Memory::LentMut(bytes) => device.register_lent(bytes.lending(), access).ok(),
            _ => None,
        };
        let Some(region) = registered else { return false };
        self.role = Role::Registered(region.into_any());
        true
    }

    fn deregister(&mut self) {
        if let Role::Registered(_) = self.role {
            let registered = std::mem::replace(self, Self::whole(Buffer::default()));
            self.buffer = registered.into_buffer();
        }
    }
}
