//! A VM's configuration as libxl's JSON (`libxl_domain_config`), which is in the files of `xl save` and
//! what `xl migrate` sends.
//!
//! Written so that Xen 4.17 and later read it; read from 4.17 to 4.20. A field that libxl does not know is
//! ignored by it, and one that is missing has its default, which is why little is written. What is read
//! becomes a configuration file and is checked as one.
//!
//! Sources: xen `tools/libs/light/libxl_types.idl`, `gentypes.py`, `libxl_json.c`.

mod machine;
mod pci;
mod read;
mod served;
#[cfg(test)]
mod tests;
mod write;

pub use read::from_json;
pub use write::{fields, to_json};

use crate::config::VmConfig;

/// A configuration that was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Imported {
    pub config: VmConfig,
    /// What the VM lacks, a line each.
    pub warnings: Vec<String>,
}

/// A configuration that cannot be taken over.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{file}: {field}{problem}")]
pub struct ImportError {
    file: String,
    /// As `b_info.kernel: `, or empty.
    field: String,
    problem: String,
}

/// Something that xl has no word for.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ExportError {
    #[error("the VM has no UUID yet")]
    NoUuid,
    #[error(
        "disk {vdev}: xl does not know the VDI {target}; name the file or device that it is on the \
         other host"
    )]
    Vdi { vdev: String, target: String },
}
