//! Domains (`fi_domain`).

use std::ffi::{c_int, c_void};

use efa::{AddressVectorKind, DomainOptions, Link, Progress, RegistrationMode};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, status};
use crate::c::fabric::Fabric;
use crate::c::{atomic, av, counter, cq, endpoint, entry, mr, shared, wait};
use crate::errors;
use crate::object::{Class, Object, Pool, Use};
use crate::threads::with_signals_blocked;

/// A domain.
pub(crate) struct Domain {
    pub(crate) domain: efa::Domain,
    /// The name of its device, if the program gave one.
    device: Option<String>,
    pub(crate) fabric: Use<Fabric>,
    pub(crate) addresses: AddressVectorKind,
    /// The newest release that the program knows.
    pub(crate) api_version: u32,
}

static FID: fi_ops =
    fi_ops { close: Some(close), control: Some(control), ..fi_ops::failing::<FI_ENOSYS>() };
static TABLE: fi_ops_domain = fi_ops_domain {
    av_open: Some(av::open),
    cntr_open: Some(counter::open),
    cq_open: Some(cq::open),
    endpoint: Some(endpoint::open),
    poll_open: Some(wait::open_poll_set),
    query_atomic: Some(atomic::query),
    srx_ctx: Some(shared::open_receives),
    stx_ctx: Some(shared::open_sends),
    ..fi_ops_domain::failing::<FI_ENOSYS>()
};
static CLOSED: fi_ops_domain = fi_ops_domain::failing::<FI_EBADF>();
static CLOSED_REGISTRATION: fi_ops_mr = fi_ops_mr::failing::<FI_EBADF>();

// SAFETY: `fid_domain` begins with a `fid`.
unsafe impl Class for Domain {
    type C = fid_domain;

    const NUMBER: usize = FI_CLASS_DOMAIN;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid_domain {
        fid_domain { fid, ops: &TABLE, mr: &mr::TABLE }
    }

    fn closed(fid: fid) -> fid_domain {
        fid_domain { fid, ops: &CLOSED, mr: &CLOSED_REGISTRATION }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Domain> = Pool::new();
        &POOL
    }
}

/// `fi_domain`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the table is that of a fabric; the program passes an entry and a place for the object.
        unsafe {
            let fabric = Object::<Fabric>::of(fabric);
            let info = info.as_ref().ok_or(INVALID)?;
            let to = domain.as_mut().ok_or(INVALID)?;
            let attr = info.domain_attr.as_ref().ok_or(INVALID)?;
            let api_version = (*fabric.address()).api_version;
            let name = entry::text(attr.name)?;
            let opened = Domain::new(fabric, name, info.caps, attr, api_version)?;
            *to = Object::create(opened, context).as_ref().address();
        }
        Ok(())
    })
}

impl Domain {
    fn new(
        fabric: &Object<Fabric>,
        name: Option<&str>,
        caps: u64,
        attr: &fi_domain_attr,
        api_version: u32,
    ) -> Outcome<Self> {
        let progress = match attr.data_progress {
            FI_PROGRESS_AUTO => Progress::Automatic,
            FI_PROGRESS_UNSPEC | FI_PROGRESS_MANUAL => Progress::Manual,
            _ => return Err(INVALID),
        };
        let registration = crate::info::registration(api_version, Some(caps), Some(attr))?;
        let options = DomainOptions::new().progress(progress).registration(registration);
        let name = name.map(|name| fabric.settings.device_name(name));
        let options = match name {
            Some(name) => options.interface(name),
            None => options,
        };
        // With automatic progress it starts a thread.
        let domain = with_signals_blocked(|| fabric.fabric.domain_with(options))
            .map_err(|error| errors::of_error(&error))?;
        domain.limit_registrations(fabric.settings.environment.registrations);
        let addresses = match attr.av_type {
            FI_AV_MAP => AddressVectorKind::Map,
            _ => AddressVectorKind::Table,
        };
        let device = name.map(str::to_owned);
        Ok(Self { domain, device, fabric: Use::new(fabric), addresses, api_version })
    }

    /// Whether its device has this name, or the program left that open.
    pub(crate) fn is_on(&self, device: &str) -> bool {
        self.device.as_ref().is_none_or(|name| name == device)
    }

    /// Whether the device takes its time to register memory.
    pub(crate) fn registers_at_cost(&self) -> bool {
        self.fabric.fabric.link() == Link::Verbs
    }

    /// Whether memory is registered as the entry of an endpoint says.
    ///
    /// # Errors
    /// `FI_EINVAL` if its keys are the program's, and those of the domain aren't, as it was opened by an entry without
    /// remote memory.
    pub(crate) fn takes_keys_of(&self, caps: u64, attr: Option<&fi_domain_attr>) -> Outcome<()> {
        let wanted = crate::info::registration(self.api_version, Some(caps), attr);
        match wanted {
            Ok(RegistrationMode::Scalable) if !self.is_scalable() => Err(INVALID),
            _ => Ok(()),
        }
    }

    /// Whether keys of memory are the program's, and addresses are offsets.
    pub(crate) fn is_scalable(&self) -> bool {
        self.domain.attributes().registration_mode == RegistrationMode::Scalable
    }
}

/// `fi_mr_map_raw` and `fi_mr_unmap_key`.
unsafe extern "C" fn control(_fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: each command says what `arg` points to.
    status(|| unsafe { mr::map_raw(command, arg) })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table is that of a domain.
    status(|| unsafe { Object::<Domain>::of(fid.cast()).close() }.map(drop))
}

/// An object of a domain that another of its objects is given.
pub(crate) fn of_same(domain: &Use<Domain>, other: &Use<Domain>) -> Outcome<()> {
    match domain.is(other.object()) {
        true => Ok(()),
        false => Err(Errno(FI_EDOMAIN)),
    }
}
