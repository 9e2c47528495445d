//! What happens, for libfabric's log.

use std::fmt;

use crate::abi::fi_provider;

/// Messages go to the log of this provider from now on.
pub(crate) fn attach(_provider: *mut fi_provider) {}

/// Something that the user should mend.
pub(crate) fn warn(_text: fmt::Arguments<'_>) {}

/// Why something is as it is.
pub(crate) fn info(_text: fmt::Arguments<'_>) {}
