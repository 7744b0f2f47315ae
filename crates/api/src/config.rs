//! A VM's configuration in the format of `xl list -l`, for scripts that parse that output.
//!
//! Fields that the daemon itself reads or fills in have a type here; all others are libxl's words, as they are in the file that
//! libxl keeps of a domain. Source: xen `tools/libs/light/libxl_types.idl`,
//! `printf_info_one_json` in `tools/xl/xl_info.c`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::request::is_unset;

/// Fields by libxl's names.
pub type Fields = Map<String, Value>;

/// An entry of `list -l`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ListedConfig {
    /// `None` in a dry run.
    pub domid: Option<u16>,
    pub config: DomainConfig,
}

/// `libxl_domain_config`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DomainConfig {
    pub c_info: CreateInfo,
    pub b_info: BuildInfo,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_poweroff: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_reboot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_watchdog: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_crash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_soft_reset: Option<String>,
    /// libxl's other fields.
    #[serde(flatten)]
    pub more: Fields,
}

/// `libxl_domain_create_info`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CreateInfo {
    #[serde(rename = "type")]
    pub kind: String,
    pub name: String,
    pub uuid: String,
    /// libxl's other fields.
    #[serde(flatten)]
    pub more: Fields,
}

/// `libxl_domain_build_info`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BuildInfo {
    pub max_vcpus: u32,
    /// Numbers of the vCPUs that are online at the start.
    pub avail_vcpus: Vec<u32>,
    pub max_memkb: u64,
    pub target_memkb: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tsc_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramdisk: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_grant_frames: Option<u32>,
    /// libxl's other fields.
    #[serde(flatten)]
    pub more: Fields,
}

/// `libxl_device_disk`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Disk {
    pub pdev_path: String,
    pub vdev: String,
    pub backend: String,
    pub format: String,
    /// 1 if the guest may write; libxl's JSON has a number here.
    #[serde(skip_serializing_if = "is_unset")]
    pub readwrite: u32,
    #[serde(skip_serializing_if = "is_unset")]
    pub is_cdrom: u32,
    /// libxl's other fields.
    #[serde(flatten)]
    pub more: Fields,
}

/// `libxl_device_nic`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Nic {
    pub devid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    pub bridge: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_interval: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_interval_usecs: Option<u64>,
    /// libxl's other fields.
    #[serde(flatten)]
    pub more: Fields,
}
