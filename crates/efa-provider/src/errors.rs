//! Errors of `efa` as error numbers of libfabric: what calls return, and what error entries hold.
//!
//! ```text
//!   StartError, DeviceError, … ─► of_… ─► Errno: a call returns the negated number
//!   OperationError ─► of_operation ─► fi_cq_err_entry: err, prov_errno ─► text(prov_errno)
//! ```
//!
//! `prov_errno` of an entry in a completion queue is
//!
//! * a status of the device (0 to 255), or the reason for which a peer gave the operation up, which is such a status or
//!   a number of Amazon's provider (4,096 and some more),
//! * or a number of this provider: [`OWN`] and more.
//!
//! In an event queue it is the same number as `err`.

use std::ffi::{CStr, CString, c_int};
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use efa::{
    Bound, ConnectError, DeviceError, EnableError, Error, Event, InsertionError, KeyError,
    OperationError, StartConnectError, StartError, Status,
};

use crate::abi::*;
use crate::boundary::Errno;

/// An operation couldn't be started.
#[cold]
pub(crate) fn of_start(error: &StartError) -> Errno {
    Errno(match error {
        // The operation can be tried again, as after any other lack of resources.
        StartError::Device(lack) if lack.shortage().is_some() => {
            log_reason(lack);
            FI_EAGAIN
        }
        _ if error.is_busy() || error.shortage().is_some() => FI_EAGAIN,
        StartError::Closed => FI_EBADF,
        StartError::NotConnected => FI_ENOTCONN,
        StartError::PeerGone(_) => FI_EHOSTUNREACH,
        StartError::TooLong { .. } => FI_EMSGSIZE,
        StartError::Disabled(_) | StartError::NotInPlace => FI_EOPNOTSUPP,
        StartError::OtherDomain => FI_EDOMAIN,
        StartError::Access { .. } => FI_EACCES,
        StartError::ClaimEnded => FI_ENOMSG,
        StartError::UnknownAddress(_)
        | StartError::TooLongToInject { .. }
        | StartError::LengthsDiffer { .. }
        | StartError::NotRegistered { .. }
        | StartError::SeveralContexts { .. }
        | StartError::ReceivesShared
        | StartError::SharedSource(_) => FI_EINVAL,
        StartError::Device(error) => of_device(error).0,
        StartError::Engine(error) => of_engine(error),
        _ => FI_EOTHER,
    })
}

fn of_engine(error: &efa::EngineStartError) -> c_int {
    use efa::EngineStartError as Engine;
    match error {
        Engine::Busy { .. } | Engine::Lacking(_) => FI_EAGAIN,
        Engine::PeerGone(_) => FI_EHOSTUNREACH,
        Engine::AtomicTooLong { .. } => FI_EMSGSIZE,
        Engine::NoSuchAtomic { .. } | Engine::PlainOnly { .. } | Engine::InPlaceOnly => {
            FI_EOPNOTSUPP
        }
        Engine::ClaimEnded => FI_ENOMSG,
        Engine::UnknownPeer(_)
        | Engine::TooLongToInject { .. }
        | Engine::LengthsDiffer { .. }
        | Engine::NotOfElements { .. } => FI_EINVAL,
        _ => FI_EOTHER,
    }
}

/// Logs why the device failed, of which C programs get the number alone. The same is logged once a second, as they repeat
/// calls; so are all shortages together.
#[cold]
fn log_reason(error: &DeviceError) {
    const PAUSE: Duration = Duration::from_secs(1);
    static LAST: Mutex<Option<(Instant, Option<DeviceError>)>> = Mutex::new(None);
    let (now, what) = (Instant::now(), error.shortage().is_none().then(|| error.clone()));
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.as_ref().is_none_or(|(at, before)| now - *at >= PAUSE || *before != what) {
        *last = Some((now, what));
        drop(last);
        tracing::warn!("{error}");
    }
}

/// The device failed.
pub(crate) fn of_device(error: &DeviceError) -> Errno {
    if let DeviceError::System { .. }
    | DeviceError::Inconsistent { .. }
    | DeviceError::QueuePairFailed { .. }
    | DeviceError::Absent { .. } = error
    {
        log_reason(error);
    }
    Errno(match error {
        DeviceError::QueueFull { .. } => FI_EAGAIN,
        DeviceError::TooLong { .. } => FI_EMSGSIZE,
        DeviceError::BadAddress { .. }
        | DeviceError::BadAddressHandle { .. }
        | DeviceError::OutOfRegion { .. } => FI_EINVAL,
        DeviceError::Unreachable { .. } => FI_EHOSTUNREACH,
        DeviceError::Unsupported { .. } => FI_EOPNOTSUPP,
        DeviceError::LimitReached { .. } => FI_ENOSPC,
        DeviceError::Absent { .. } => FI_ENODEV,
        DeviceError::System { errno, .. } => of_system(*errno),
        DeviceError::Inconsistent { .. } | DeviceError::QueuePairFailed { .. } => FI_EIO,
        _ => FI_EOTHER,
    })
}

/// A number of the system, which is one of libfabric too.
fn of_system(errno: i32) -> c_int {
    if (1..FI_ERRNO_OFFSET).contains(&errno) { errno } else { FI_EIO }
}

/// A call of the system failed.
pub(crate) fn of_io(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().map_or_else(|| of_kind(error.kind()), of_system))
}

fn of_kind(kind: io::ErrorKind) -> c_int {
    match kind {
        io::ErrorKind::ConnectionRefused => FI_ECONNREFUSED,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => FI_ECONNRESET,
        io::ErrorKind::ConnectionAborted => FI_ECONNABORTED,
        io::ErrorKind::HostUnreachable => FI_EHOSTUNREACH,
        io::ErrorKind::NetworkUnreachable => FI_ENETUNREACH,
        io::ErrorKind::NetworkDown => FI_ENETDOWN,
        io::ErrorKind::AddrInUse => FI_EADDRINUSE,
        io::ErrorKind::AddrNotAvailable => FI_EADDRNOTAVAIL,
        io::ErrorKind::PermissionDenied => FI_EACCES,
        io::ErrorKind::TimedOut => FI_ETIMEDOUT,
        io::ErrorKind::OutOfMemory => FI_ENOMEM,
        _ => FI_EIO,
    }
}

/// An object couldn't be opened.
pub(crate) fn of_error(error: &Error) -> Errno {
    Errno(match error {
        Error::NoData { .. } => FI_ENODATA,
        Error::Version { .. } => FI_ENOSYS,
        Error::Device(error) => of_device(error).0,
        _ => FI_EOTHER,
    })
}

/// An endpoint couldn't be enabled.
pub(crate) fn of_enable(error: &EnableError) -> Errno {
    Errno(match error {
        EnableError::Missing(Bound::TransmitQueue | Bound::ReceiveQueue) => FI_ENOCQ,
        EnableError::Missing(Bound::AddressVector) => FI_ENOAV,
        EnableError::Missing(Bound::EventQueue) => FI_ENOEQ,
        EnableError::OtherDomain(_) => FI_EDOMAIN,
        EnableError::NotOffered(_) => FI_EOPNOTSUPP,
        EnableError::NoSuchFlags { .. } => FI_EBADFLAGS,
        EnableError::Device(error) => of_device(error).0,
        _ => FI_EINVAL,
    })
}

/// There is no connection.
pub(crate) fn of_connect(error: &ConnectError) -> Errno {
    Errno(match error {
        ConnectError::Refused | ConnectError::Rejected { .. } => FI_ECONNREFUSED,
        ConnectError::TimedOut { .. } => FI_ETIMEDOUT,
        ConnectError::Ended => FI_ECONNRESET,
        ConnectError::Protocol(_) => FI_ECONNABORTED,
        ConnectError::System { kind, .. } => of_kind(*kind),
        ConnectError::Device(error) => of_device(error).0,
        _ => FI_EOTHER,
    })
}

/// Connecting or accepting couldn't begin.
pub(crate) fn of_start_connect(error: &StartConnectError) -> Errno {
    Errno(match error {
        StartConnectError::DataTooLong(_) => FI_EINVAL,
        StartConnectError::NotIdle => FI_EISCONN,
        StartConnectError::Enable(error) => of_enable(error).0,
        StartConnectError::Device(error) => of_device(error).0,
        StartConnectError::System(error) => of_io(error).0,
        _ => FI_EOTHER,
    })
}

/// A key can't be used.
pub(crate) fn of_key(error: &KeyError) -> Errno {
    Errno(match error {
        KeyError::Taken { .. } => FI_ENOKEY,
        KeyError::Device(error) => of_device(error).0,
        _ => FI_EINVAL,
    })
}

/// An address vector can't have this event queue, or has none.
pub(crate) fn of_insertion(error: &InsertionError) -> Errno {
    Errno(match error {
        InsertionError::NoEventQueue => FI_ENOEQ,
        _ => FI_EINVAL,
    })
}

/// What `err` and `prov_errno` of an error entry are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryNumbers {
    /// libfabric's number.
    pub(crate) error: c_int,
    /// The provider's number, for [`text`].
    pub(crate) provider: c_int,
}

/// The first number of `prov_errno` that this provider gives. Amazon's provider has 4,096 and some more.
pub(crate) const OWN: c_int = 8192;

/// Reasons of this provider's own: what `prov_errno - OWN` means.
const REASONS: [&str; 15] = [
    "another error of the provider",
    "the message is longer than the buffer, which holds its beginning",
    "cancelled",
    "the peer was excluded: it exceeded one of the bounds FI_EFARS_BOUND_…",
    "the peer restarted",
    "the peer was removed from the address vector",
    "the sender's memory can't be read, and the sender doesn't support READ_NACK",
    "the peer doesn't support what the operation needs",
    "the peer takes only messages without headers, of one packet and without a tag",
    "the header of the message doesn't have the expected length",
    "too many operations under way",
    "the device matched the receive with a packet that begins no message",
    "no message is there that the receive would take",
    "the connection has ended",
    "the endpoint was closed",
];

/// The numbers in the entry of a peek that found nothing.
pub(crate) const NO_MESSAGE: EntryNumbers = EntryNumbers { error: FI_ENOMSG, provider: OWN + 12 };

/// The numbers in the entry of an operation that failed.
pub(crate) fn of_operation(error: &OperationError) -> EntryNumbers {
    let own = |error, reason: c_int| EntryNumbers { error, provider: OWN + reason };
    match error {
        OperationError::Truncated { .. } => own(FI_ETRUNC, 1),
        OperationError::Cancelled => own(FI_ECANCELED, 2),
        OperationError::PeerExcluded(_) => own(FI_ECONNABORTED, 3),
        OperationError::PeerRestarted => own(FI_ECONNRESET, 4),
        OperationError::PeerRemoved => own(FI_ECANCELED, 5),
        OperationError::NotReadable => own(FI_EREMOTEIO, 6),
        OperationError::PeerLacks { .. } => own(FI_EOPNOTSUPP, 7),
        OperationError::PlainOnly { .. } => own(FI_EOPNOTSUPP, 8),
        OperationError::UnexpectedHeader { .. } => own(FI_EIO, 9),
        OperationError::TooManyOperations => own(FI_ENOBUFS, 10),
        OperationError::WronglyMatched => own(FI_EIO, 11),
        OperationError::ConnectionEnded => own(FI_ECANCELED, 13),
        OperationError::Closed => own(FI_ECANCELED, 14),
        OperationError::Device(status) => {
            EntryNumbers { error: of_status(*status), provider: status.code().into() }
        }
        OperationError::GivenUp { code } => EntryNumbers {
            error: status(*code).map_or(FI_EREMOTEIO, of_status),
            provider: c_int::try_from(*code).unwrap_or(OWN),
        },
        _ => own(FI_EOTHER, 0),
    }
}

/// The number in an event queue's entry for what failed at an endpoint and isn't the failure of an operation under way.
/// `None` of what a peer can bring about: programs may end for such an entry.
pub(crate) fn of_event(event: &Event) -> Option<Errno> {
    match event {
        Event::QueuePairFailed { .. } => Some(Errno(FI_EIO)),
        Event::InjectedFailed { error, .. } => Some(Errno(of_operation(error).error)),
        _ => None,
    }
}

fn status(number: u32) -> Option<Status> {
    u8::try_from(number).ok().and_then(Status::from_code)
}

/// The number for a status of the device; Amazon's provider gives the same.
fn of_status(status: Status) -> c_int {
    match status {
        Status::Flushed => FI_ECANCELED,
        Status::QueuePairInternal
        | Status::UnsupportedOperation
        | Status::BadAddressHandle
        | Status::BadLocalKey
        | Status::RemoteBadAddress => FI_EINVAL,
        Status::NotPermitted => FI_EPERM,
        Status::BadLength | Status::RemoteBadLength => FI_EMSGSIZE,
        Status::RemoteAbort | Status::UnresponsiveRemote => FI_ECONNABORTED,
        Status::BadDestinationQpn | Status::UnknownPeer => FI_ENOTCONN,
        Status::ReceiverNotReady => FI_ENORX,
        Status::BadStatus => FI_EREMOTEIO,
        Status::UnreachableRemote => FI_EHOSTUNREACH,
        _ => FI_EOTHER,
    }
}

/// What a `prov_errno` of a completion queue means (`fi_cq_strerror`): libfabric's words for a number that the provider
/// doesn't give, as a program may ask for any.
pub(crate) fn text(provider: c_int) -> &'static CStr {
    static WORDS: OnceLock<Vec<(c_int, CString)>> = OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let statuses = (0..=u8::MAX).filter_map(|code| {
            let words = format!("the device reports: {}", Status::from_code(code)?);
            Some((code.into(), words))
        });
        let own = (OWN..).zip(REASONS).map(|(number, reason)| (number, reason.to_owned()));
        let c_string = |(number, words)| Some((number, CString::new::<String>(words).ok()?));
        statuses.chain(own).filter_map(c_string).collect()
    });
    let known = words.iter().find(|(number, _)| *number == provider);
    known.map_or_else(|| crate::libfabric::strerror(provider), |(_, words)| words.as_c_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(provider: c_int) -> String {
        text(provider).to_string_lossy().into_owned()
    }

    #[test]
    fn each_reason_of_an_operation_has_a_text_of_its_own() {
        let operations = [
            OperationError::Truncated { length: 9, capacity: 8 },
            OperationError::Cancelled,
            OperationError::PeerRestarted,
            OperationError::PeerRemoved,
            OperationError::NotReadable,
            OperationError::PlainOnly { limit: 8 },
            OperationError::UnexpectedHeader { found: 1, expected: 2 },
            OperationError::TooManyOperations,
            OperationError::WronglyMatched,
            OperationError::Device(Status::ReceiverNotReady),
            OperationError::GivenUp { code: 4111 },
            OperationError::ConnectionEnded,
            OperationError::Closed,
        ];
        let numbers = operations.map(|error| of_operation(&error));
        let mut texts = numbers.map(|numbers| words(numbers.provider));
        texts.sort();
        for two in texts.windows(2) {
            assert_ne!(two[0], two[1]);
        }
        assert_eq!(numbers[0], EntryNumbers { error: FI_ETRUNC, provider: OWN + 1 });
        assert_eq!(
            words(OWN + 1),
            "the message is longer than the buffer, which holds its beginning"
        );
        assert_eq!(numbers[9], EntryNumbers { error: FI_ENORX, provider: 10 });
        assert_eq!(numbers[10], EntryNumbers { error: FI_EREMOTEIO, provider: 4111 });
        assert_eq!(numbers[11], EntryNumbers { error: FI_ECANCELED, provider: OWN + 13 });
        assert_eq!(words(OWN + 13), "the connection has ended");
    }

    #[test]
    fn a_status_in_a_peers_reason_has_the_number_of_the_status() {
        let of_peer = of_operation(&OperationError::GivenUp { code: 15 });
        assert_eq!(of_peer, of_operation(&OperationError::Device(Status::UnreachableRemote)));
        assert_eq!(of_peer.error, FI_EHOSTUNREACH);
    }

    #[test]
    fn any_number_has_a_text() {
        for number in [c_int::MIN, -1, 0, 1, 15, 16, 4096, OWN - 1, OWN + 14, OWN + 15, c_int::MAX]
        {
            assert!(!text(number).is_empty(), "{number}");
        }
        assert_eq!(words(13), "the device reports: the remote side stopped responding");
    }

    #[test]
    fn what_can_be_tried_again_is_eagain() {
        let device = |errno| DeviceError::System {
            operation: "open".to_owned(),
            errno,
            reason: String::new(),
        };
        let busy = [
            StartError::Busy { limit: 1 },
            StartError::QueueFull { capacity: 1 },
            StartError::Device(DeviceError::QueueFull { depth: 1 }),
            StartError::Device(device(libc::ENOSPC)),
        ];
        for error in busy {
            assert_eq!(of_start(&error), Errno(FI_EAGAIN), "{error}");
        }
        assert_eq!(of_start(&StartError::Device(device(libc::EPERM))), Errno(FI_EPERM));
        assert_eq!(of_device(&device(0)), Errno(FI_EIO));
        assert_eq!(of_device(&device(-5)), Errno(FI_EIO));
        assert_eq!(of_device(&device(FI_ERRNO_OFFSET)), Errno(FI_EIO));
    }
}
