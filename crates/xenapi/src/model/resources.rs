//! Classes of storage and networks.

use super::{Def, Kind};
use Kind::{Bool, Date, Enum, Float, Int, Map, Ref, Set, Str};

pub(super) const SR: Def = Def {
    name: "SR",
    fields: &[
        (Str, "uuid name_label name_description type content_type"),
        (Int, "virtual_allocation physical_utilisation physical_size"),
        (Bool, "shared local_cache_enabled clustered is_tools_sr"),
        (Ref, "introduced_by"),
        (Set, "allowed_operations VDIs PBDs tags"),
        (Map, "current_operations other_config sm_config blobs"),
    ],
    labels: "name_label name_description tags other_config",
};

pub(super) const PBD: Def = Def {
    name: "PBD",
    fields: &[
        (Str, "uuid"),
        (Bool, "currently_attached"),
        (Ref, "host SR"),
        (Map, "device_config other_config"),
    ],
    labels: "other_config",
};

pub(super) const SM: Def = Def {
    name: "SM",
    fields: &[
        (
            Str,
            "uuid name_label name_description type vendor copyright version required_api_version \
             driver_filename",
        ),
        (Set, "capabilities required_cluster_stack"),
        (Map, "configuration features other_config"),
    ],
    labels: "other_config",
};

pub(super) const VDI: Def = Def {
    name: "VDI",
    fields: &[
        (Str, "uuid name_label name_description location"),
        (Int, "virtual_size physical_utilisation"),
        (
            Bool,
            "sharable read_only storage_lock managed missing is_a_snapshot allow_caching \
             metadata_latest is_tools_iso cbt_enabled",
        ),
        (Date, "snapshot_time"),
        (Ref, "SR parent snapshot_of metadata_of_pool"),
        (Set, "allowed_operations VBDs crash_dumps snapshots tags"),
        (Map, "current_operations other_config xenstore_data sm_config"),
        (Enum("persist"), "on_boot"),
        (Enum("user"), "type"),
    ],
    labels: "name_label name_description tags other_config",
};

pub(super) const NETWORK: Def = Def {
    name: "network",
    fields: &[
        (Str, "uuid name_label name_description bridge"),
        (Int, "MTU"),
        (Bool, "managed"),
        (Set, "allowed_operations VIFs PIFs tags purpose"),
        (Map, "current_operations other_config blobs assigned_ips"),
        (Enum("unlocked"), "default_locking_mode"),
    ],
    labels: "name_label name_description tags other_config",
};

pub(super) const PIF: Def = Def {
    name: "PIF",
    fields: &[
        (Str, "uuid device MAC IP netmask gateway DNS ipv6_gateway"),
        (Int, "MTU VLAN"),
        (Bool, "physical currently_attached management disallow_unplug managed"),
        (Ref, "network host metrics bond_slave_of VLAN_master_of PCI"),
        (
            Set,
            "bond_master_of VLAN_slave_of tunnel_access_PIF_of tunnel_transport_PIF_of IPv6 \
             capabilities sriov_physical_PIF_of sriov_logical_PIF_of",
        ),
        (Map, "other_config properties"),
        (Enum("IPv4"), "primary_address_type"),
        (Enum("None"), "ip_configuration_mode ipv6_configuration_mode"),
        (Enum("unknown"), "igmp_snooping_status"),
    ],
    labels: "other_config",
};

pub(super) const PIF_METRICS: Def = Def {
    name: "PIF_metrics",
    fields: &[
        (Str, "uuid vendor_id vendor_name device_id device_name pci_bus_path"),
        (Int, "speed"),
        (Float, "io_read_kbs io_write_kbs"),
        (Bool, "carrier duplex"),
        (Date, "last_updated"),
        (Map, "other_config"),
    ],
    labels: "",
};

pub(super) const VLAN: Def = Def {
    name: "VLAN",
    fields: &[(Str, "uuid"), (Int, "tag"), (Ref, "tagged_PIF untagged_PIF"), (Map, "other_config")],
    labels: "",
};

pub(super) const BOND: Def = Def {
    name: "Bond",
    fields: &[
        (Str, "uuid"),
        (Int, "links_up"),
        (Bool, "auto_update_mac"),
        (Ref, "master primary_slave"),
        (Set, "slaves"),
        (Map, "other_config properties"),
        (Enum("balance-slb"), "mode"),
    ],
    labels: "",
};
