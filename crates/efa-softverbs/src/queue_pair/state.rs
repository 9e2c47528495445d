//! The states of a queue pair, and the transitions between them.
//!
//! ```text
//!  RESET ──► INIT ──► RTR ──► RTS ──► ERR       ERR also from INIT and RTR, RESET from all:
//!            queue    │       can send          what is outstanding ends without completions
//!            key      can receive
//! ```

use std::ffi::c_int;

use efa_device::Qkey;

use super::Transport;
use crate::abi::*;
use crate::boundary::{INVALID, NOT_PERMITTED, Outcome, UNSUPPORTED};

/// The bit of Q_Keys that the kernel lets privileged programs alone set.
const PRIVILEGED_QKEY: u32 = 1 << 31;
/// Largest `rnr_retry`: it has three bits.
const MAX_RNR_RETRY: u8 = 7;

/// The state of a queue pair, an `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QpState {
    Reset,
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    Error,
}

impl QpState {
    /// The number that C has for it.
    pub(crate) fn number(self) -> c_int {
        match self {
            Self::Reset => IBV_QPS_RESET,
            Self::Init => IBV_QPS_INIT,
            Self::Rtr => IBV_QPS_RTR,
            Self::Rts => IBV_QPS_RTS,
            Self::Error => IBV_QPS_ERR,
        }
    }

    fn from_number(number: c_int) -> Outcome<Self> {
        Ok(match number {
            IBV_QPS_RESET => Self::Reset,
            IBV_QPS_INIT => Self::Init,
            IBV_QPS_RTR => Self::Rtr,
            IBV_QPS_RTS => Self::Rts,
            IBV_QPS_ERR => Self::Error,
            _ => return Err(INVALID),
        })
    }
}

/// What `ibv_query_qp` returns of what a program has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settable {
    pub(crate) state: QpState,
    pub(crate) qkey: Qkey,
    pub(crate) rnr_retry: u8,
    /// Kept for the program alone.
    pub(crate) sq_psn: u32,
}

/// What a call of `ibv_modify_qp` asks for.
#[derive(Debug)]
pub(crate) struct ModifyRequest {
    mask: c_int,
    /// The state to move to.
    state: Option<QpState>,
    /// The state that the program takes the queue pair to be in.
    current: Option<QpState>,
    pub(super) qkey: Option<Qkey>,
    pub(super) rnr_retry: Option<u8>,
    pub(super) sq_psn: Option<u32>,
}

impl ModifyRequest {
    /// Reads the attributes that `mask` names.
    pub(crate) fn new(
        attributes: &ibv_qp_attr,
        mask: c_int,
        transport: Transport,
    ) -> Outcome<Self> {
        let known = IBV_QP_STATE
            | IBV_QP_CUR_STATE
            | IBV_QP_PKEY_INDEX
            | IBV_QP_PORT
            | IBV_QP_QKEY
            | IBV_QP_SQ_PSN
            | IBV_QP_RNR_RETRY;
        if mask & !known != 0 {
            return Err(UNSUPPORTED);
        }
        let has = |flag| mask & flag != 0;
        let bad_port = has(IBV_QP_PORT) && attributes.port_num != 1;
        let rnr_retry = has(IBV_QP_RNR_RETRY).then_some(attributes.rnr_retry);
        let bad_rnr =
            rnr_retry.is_some_and(|count| count > MAX_RNR_RETRY || transport == Transport::Ud);
        if bad_port || bad_rnr {
            return Err(INVALID);
        }
        if has(IBV_QP_QKEY) && attributes.qkey & PRIVILEGED_QKEY != 0 {
            return Err(NOT_PERMITTED);
        }
        if has(IBV_QP_PKEY_INDEX) && attributes.pkey_index != 0 {
            return Err(UNSUPPORTED);
        }
        let state = has(IBV_QP_STATE).then(|| QpState::from_number(attributes.qp_state));
        let current = has(IBV_QP_CUR_STATE).then(|| QpState::from_number(attributes.cur_qp_state));
        Ok(Self {
            mask,
            state: state.transpose()?,
            current: current.transpose()?,
            qkey: has(IBV_QP_QKEY).then_some(Qkey(attributes.qkey)),
            rnr_retry,
            sq_psn: has(IBV_QP_SQ_PSN).then_some(attributes.sq_psn),
        })
    }

    /// Checks the transition against the table of the kernel's driver; returns the state that it
    /// leads to.
    pub(super) fn check(&self, from: QpState) -> Outcome<QpState> {
        use QpState::{Error, Init, Reset, Rtr, Rts};
        let to = self.state.unwrap_or(from);
        let (required, optional) = match (from, to) {
            (_, Reset) | (Init | Rtr | Rts | Error, Error) => (0, 0),
            (Reset, Init) => (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0),
            (Init, Init) => (0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            (Init, Rtr) => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
            (Rtr, Rts) => (IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY | IBV_QP_RNR_RETRY),
            (Rts, Rts) => (0, IBV_QP_CUR_STATE | IBV_QP_QKEY),
            _ => return Err(INVALID),
        };
        let complete = self.mask & required == required;
        let allowed = self.mask & !(required | optional | IBV_QP_STATE) == 0;
        let current_matches = self.current.is_none_or(|current| current == from);
        if complete && allowed && current_matches { Ok(to) } else { Err(INVALID) }
    }
}
