//! The control channels of `efa pingpong` with any input, for `tests/hostile`: a run without its messages.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use efa::Address;

use super::PingpongError;
use super::control::{Channel, Message, Stream};
use super::fi;
use super::run::conclude;

/// Longer than any wait on a closed connection.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The side that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client.
    Client,
    /// The server.
    Server,
    /// The client of a `fi_pingpong`.
    FiClient,
    /// The server of one.
    FiServer,
}

/// Runs the control channel of a side with this input, at most 64 KiB. Returns the bytes of message buffers that
/// the run would allocate.
///
/// # Errors
/// The error that the user sees.
pub fn run_control(side: Side, input: &[u8]) -> Result<u64, String> {
    let result = connection(input).and_then(|(stream, _open)| match side {
        Side::Client => {
            let mut channel = Channel::open(stream, TIMEOUT)?;
            let ended = as_client(&mut channel);
            conclude(&mut channel, ended)
        }
        Side::Server => {
            let mut channel = Channel::open(stream, TIMEOUT)?;
            let ended = as_server(&mut channel);
            conclude(&mut channel, ended)
        }
        Side::FiClient => Ok(fi::control_as_client(stream, TIMEOUT).map(|()| 0)?),
        Side::FiServer => Ok(fi::control_as_server(stream, TIMEOUT).map(|()| 0)?),
    });
    result.map_err(|error| crate::one_line(&error.into()))
}

/// A connection with all input written, and its other end.
fn connection(said: &[u8]) -> Result<(Stream, UnixStream), PingpongError> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(&said[..said.len().min(64 << 10)])?;
    theirs.shutdown(Shutdown::Write)?;
    Ok((Stream::Unix(ours), theirs))
}

fn as_server(channel: &mut Channel) -> Result<u64, PingpongError> {
    let (plan, theirs) = channel.receive_start()?;
    plan.check_bounds()?;
    let theirs: Address = theirs.parse()?;
    channel.send(&Message::Ready { address: theirs.to_string() })?;
    channel.check()?;
    channel.receive_done()?;
    let under_way = plan.steps.iter().map(|step| step.size * step.window);
    Ok(under_way.max().unwrap_or(0))
}

fn as_client(channel: &mut Channel) -> Result<u64, PingpongError> {
    let _: Address = channel.receive_ready()?.parse()?;
    channel.check()?;
    channel.receive_done()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(size: u64, window: u64) -> String {
        format!(
            r#"{{"protocol":"efa-pingpong","version":1}}
{{"message":"start","plan":{{"mode":"bandwidth","tagged":false,"cq_data":false,"check":true,"warmup":0,"steps":[{{"size":{size},"iterations":1,"window":{window}}}]}},"address":"[fe80::1]:7/0x00000009"}}
{{"message":"done"}}
"#
        )
    }

    #[test]
    fn server_allocates_buffers_up_to_the_bound_of_plans() {
        assert_eq!(run_control(Side::Server, start(1 << 30, 4).as_bytes()), Ok(4 << 30));
        let error = run_control(Side::Server, start(1 << 30, 1024).as_bytes()).unwrap_err();
        assert!(error.contains("size × window is 1099511627776"), "{error}");
    }

    #[test]
    fn errors_of_the_other_side_fit_one_line() {
        let hello = "{\"protocol\":\"efa-pingpong\",\"version\":1}\n";
        let run = |input: &str| run_control(Side::Client, format!("{hello}{input}\n").as_bytes());
        let reason = run(r#"{"message":"failed","reason":"no\u001b[31m\n"}"#);
        assert_eq!(reason, Err("the other side failed: no\\u{1b}[31m\\n".into()));
        let variant = run(r#"{"message":"\u001b[2J"}"#).unwrap_err();
        assert!(variant.contains("unknown variant `\\u{1b}[2J`"), "{variant}");
    }
}
