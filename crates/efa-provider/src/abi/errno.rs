//! What `rdma/fi_errno.h` declares: numbers of errors. Functions return them negated.

use std::ffi::c_int;

/// Numbers that libfabric takes from the system.
macro_rules! of_system {
    ($($name:ident = $number:ident;)*) => {
        $(pub const $name: c_int = libc::$number;)*
    };
}

pub const FI_SUCCESS: c_int = 0;

of_system! {
    FI_EPERM = EPERM;
    FI_ENOENT = ENOENT;
    FI_EINTR = EINTR;
    FI_EIO = EIO;
    FI_E2BIG = E2BIG;
    FI_EBADF = EBADF;
    FI_EAGAIN = EAGAIN;
    FI_ENOMEM = ENOMEM;
    FI_EACCES = EACCES;
    FI_EFAULT = EFAULT;
    FI_EBUSY = EBUSY;
    FI_ENODEV = ENODEV;
    FI_EINVAL = EINVAL;
    FI_EMFILE = EMFILE;
    FI_ENOSPC = ENOSPC;
    FI_ENOSYS = ENOSYS;
    FI_EWOULDBLOCK = EWOULDBLOCK;
    FI_ENOMSG = ENOMSG;
    FI_ENODATA = ENODATA;
    FI_EOVERFLOW = EOVERFLOW;
    FI_EMSGSIZE = EMSGSIZE;
    FI_ENOPROTOOPT = ENOPROTOOPT;
    FI_EOPNOTSUPP = EOPNOTSUPP;
    FI_EADDRINUSE = EADDRINUSE;
    FI_EADDRNOTAVAIL = EADDRNOTAVAIL;
    FI_ENETDOWN = ENETDOWN;
    FI_ENETUNREACH = ENETUNREACH;
    FI_ECONNABORTED = ECONNABORTED;
    FI_ECONNRESET = ECONNRESET;
    FI_ENOBUFS = ENOBUFS;
    FI_EISCONN = EISCONN;
    FI_ENOTCONN = ENOTCONN;
    FI_ESHUTDOWN = ESHUTDOWN;
    FI_ETIMEDOUT = ETIMEDOUT;
    FI_ECONNREFUSED = ECONNREFUSED;
    FI_EHOSTDOWN = EHOSTDOWN;
    FI_EHOSTUNREACH = EHOSTUNREACH;
    FI_EALREADY = EALREADY;
    FI_EINPROGRESS = EINPROGRESS;
    FI_EREMOTEIO = EREMOTEIO;
    FI_ECANCELED = ECANCELED;
    FI_EKEYREJECTED = EKEYREJECTED;
}

pub const FI_ERRNO_OFFSET: c_int = 256;
pub const FI_EOTHER: c_int = 256;
pub const FI_ETOOSMALL: c_int = 257;
pub const FI_EOPBADSTATE: c_int = 258;
pub const FI_EAVAIL: c_int = 259;
pub const FI_EBADFLAGS: c_int = 260;
pub const FI_ENOEQ: c_int = 261;
pub const FI_EDOMAIN: c_int = 262;
pub const FI_ENOCQ: c_int = 263;
pub const FI_ECRC: c_int = 264;
pub const FI_ETRUNC: c_int = 265;
pub const FI_ENOKEY: c_int = 266;
pub const FI_ENOAV: c_int = 267;
pub const FI_EOVERRUN: c_int = 268;
pub const FI_ENORX: c_int = 269;
