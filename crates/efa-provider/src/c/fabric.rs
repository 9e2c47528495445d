//! Fabrics (`fi_fabric`).

use std::ffi::{c_int, c_void};

use crate::abi::*;
use crate::boundary::{INVALID, status};
use crate::c::{domain, entry, eq, passive, wait};
use crate::object::{Class, Object, Pool};
use crate::settings::Settings;

/// A fabric.
pub(crate) struct Fabric {
    pub(crate) fabric: efa::Fabric,
    pub(crate) settings: Settings,
}

static FID: fi_ops = fi_ops { close: Some(close), ..fi_ops::failing::<FI_ENOSYS>() };
static TABLE: fi_ops_fabric = fi_ops_fabric {
    domain: Some(domain::open),
    eq_open: Some(eq::open),
    passive_ep: Some(passive::open),
    wait_open: Some(wait::open_wait_set),
    trywait: Some(wait::try_wait),
    ..fi_ops_fabric::failing::<FI_ENOSYS>()
};
static CLOSED: fi_ops_fabric = fi_ops_fabric::failing::<FI_EBADF>();

// SAFETY: `fid_fabric` begins with a `fid`.
unsafe impl Class for Fabric {
    type C = fid_fabric;

    const NUMBER: usize = FI_CLASS_FABRIC;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid_fabric {
        fid_fabric { fid, ops: &TABLE, api_version: 0 }
    }

    fn closed(fid: fid) -> fid_fabric {
        fid_fabric { fid, ops: &CLOSED, api_version: 0 }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Fabric> = Pool::new();
        &POOL
    }
}

/// `fi_fabric`, of libfabric's `fi_provider`.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: libfabric passes attributes with a name or null, and a place for the object.
        unsafe {
            let (attr, to) = (attr.as_ref().ok_or(INVALID)?, fabric.as_mut().ok_or(INVALID)?);
            let settings = Settings::read()?;
            let name = entry::text(attr.name)?.filter(|_| !settings.is_in_place());
            let fabric = settings.device.open(name, &settings.environment)?;
            let object = Object::create(Fabric { fabric, settings }, context);
            // The provider sets what of the structure isn't a table.
            let address = object.as_ref().address();
            (*address).api_version = attr.api_version;
            *to = address;
        }
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table is that of a fabric.
    status(|| unsafe { Object::<Fabric>::of(fid.cast()).close() }.map(drop))
}
