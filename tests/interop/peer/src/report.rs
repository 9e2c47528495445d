//! Results as lines.

use std::fmt;

use efa::{Completion, CompletionError, FiAddr, Kind, OperationError, StartError};

/// Error numbers of OFI.
const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;
const EIO: i32 = 5;
const EMSGSIZE: i32 = 90;
const ECONNRESET: i32 = 104;
const ECANCELED: i32 = 125;
const ENOENT: i32 = 2;
const ETRUNC: i32 = 265;

/// The error number of a failed operation.
pub(crate) fn operation_error(error: &OperationError) -> i32 {
    match error {
        OperationError::Truncated { .. } => ETRUNC,
        OperationError::Cancelled | OperationError::ConnectionEnded | OperationError::Closed => {
            ECANCELED
        }
        OperationError::PeerRestarted | OperationError::PeerRemoved => ECONNRESET,
        _ => EIO,
    }
}

/// The error number of an operation that was not started.
pub(crate) fn start_error(error: &StartError) -> i32 {
    match error {
        StartError::Busy { .. } | StartError::QueueFull { .. } => EAGAIN,
        StartError::TooLong { .. } | StartError::TooLongToInject { .. } => EMSGSIZE,
        StartError::UnknownAddress(_) => ENOENT,
        StartError::PeerGone(_) => ECONNRESET,
        _ => EINVAL,
    }
}

/// A completion as the words of a line.
struct Words<'a>(&'a Completion);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Completion { context, kind, tag, cq_data, peer, .. } = self.0;
        let service = if tag.is_some() { "tagged" } else { "msg" };
        let flags = match kind {
            Kind::Send => format!("send+{service}"),
            Kind::Released => format!("recv+{service}+multi"),
            Kind::Write => "rma+write".into(),
            Kind::Read => "rma+read".into(),
            Kind::Atomic | Kind::FetchAtomic => "atomic".into(),
            Kind::RemoteWrite => "rma+remote-write".into(),
            _ => format!("recv+{service}"),
        };
        match kind {
            Kind::RemoteWrite => write!(f, "id=none flags={flags}")?,
            _ => write!(f, "id={context} flags={flags}")?,
        }
        if cq_data.is_some() {
            f.write_str("+data")?;
        }
        let (tag, data) = (tag.unwrap_or(0), cq_data.unwrap_or(0));
        write!(f, " tag={tag:#x} data={data:#x} from=")?;
        match peer {
            Some(FiAddr(peer)) => write!(f, "{peer}"),
            None => f.write_str("none"),
        }
    }
}

/// `done …`
pub(crate) fn done(completion: &Completion) {
    println!("done {} length={}", Words(completion), completion.length);
}

/// `failed …`
pub(crate) fn failed(CompletionError { error, completion, .. }: &CompletionError) {
    let beyond = match error {
        OperationError::Truncated { length, capacity } => length - capacity,
        _ => 0,
    };
    println!(
        "failed {} length={} error={} provider-error=0 beyond={beyond}",
        Words(completion),
        completion.length,
        operation_error(error),
    );
    eprintln!("peer: operation {} failed: {error}", completion.context);
}
