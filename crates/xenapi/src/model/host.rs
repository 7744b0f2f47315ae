//! Classes of the pool and its hosts.

use super::{Def, Kind};
use Kind::{Bool, Date, Enum, Float, Int, Map, Ref, Set, Str};

pub(super) const POOL: Def = Def {
    name: "pool",
    fields: &[
        (
            Str,
            "uuid name_label name_description wlb_url wlb_username vswitch_controller \
             ha_cluster_stack uefi_certificates custom_uefi_certificates \
             client_certificate_auth_name repository_proxy_url repository_proxy_username",
        ),
        (
            Int,
            "ha_host_failures_to_tolerate ha_plan_exists_for local_auth_max_threads \
             ext_auth_max_threads update_sync_day",
        ),
        (
            Bool,
            "ha_enabled ha_allow_overcommit ha_overcommitted wlb_enabled wlb_verify_cert \
             redo_log_enabled policy_no_vendor_device live_patching_disabled \
             igmp_snooping_enabled is_psr_pending tls_verification_enabled \
             client_certificate_auth_enabled migration_compression coordinator_bias \
             update_sync_enabled",
        ),
        (Date, "telemetry_next_collection last_update_sync"),
        (
            Ref,
            "master default_SR suspend_image_SR crash_dump_SR redo_log_vdi \
             repository_proxy_password telemetry_uuid",
        ),
        (Set, "ha_statefiles tags metadata_VDIs allowed_operations repositories"),
        (
            Map,
            "other_config ha_configuration blobs gui_config health_check_config restrictions \
             current_operations guest_agent_config cpu_info",
        ),
        (Enum("weekly"), "telemetry_frequency update_sync_frequency"),
    ],
    labels: "name_label name_description tags other_config gui_config health_check_config default_SR suspend_image_SR crash_dump_SR",
};

pub(super) const HOST: Def = Def {
    name: "host",
    fields: &[
        (
            Str,
            "uuid name_label name_description API_version_vendor sched_policy hostname address \
             external_auth_type external_auth_service_name edition power_on_mode iscsi_iqn \
             uefi_certificates last_update_hash",
        ),
        (Int, "memory_overhead API_version_major API_version_minor"),
        (Bool, "enabled ssl_legacy multipathing tls_verification_enabled https_only"),
        (Date, "last_software_update"),
        (Ref, "suspend_image_sr crash_dump_sr metrics local_cache_sr control_domain"),
        (
            Set,
            "allowed_operations capabilities supported_bootloaders resident_VMs PIFs crashdumps \
             patches updates PBDs host_CPUs ha_statefiles ha_network_peers tags PCIs PGPUs PUSBs \
             virtual_hardware_platform_versions updates_requiring_reboot features certificates \
             editions pending_guidances pending_guidances_recommended pending_guidances_full",
        ),
        (
            Map,
            "current_operations API_version_vendor_implementation software_version other_config \
             cpu_configuration logging cpu_info license_params blobs external_auth_configuration \
             license_server bios_strings power_on_config chipset_info guest_VCPUs_params",
        ),
        (Enum("default_policy"), "numa_affinity_policy"),
        (Enum("disabled"), "display"),
        (Enum("unknown"), "latest_synced_updates_applied"),
    ],
    labels: "name_label name_description tags other_config",
};

pub(super) const HOST_METRICS: Def = Def {
    name: "host_metrics",
    fields: &[
        (Str, "uuid"),
        (Int, "memory_total memory_free"),
        (Bool, "live"),
        (Date, "last_updated"),
        (Map, "other_config"),
    ],
    labels: "",
};

pub(super) const HOST_CPU: Def = Def {
    name: "host_cpu",
    fields: &[
        (Str, "uuid vendor modelname stepping flags features"),
        (Int, "number speed family model"),
        (Float, "utilisation"),
        (Ref, "host"),
        (Map, "other_config"),
    ],
    labels: "",
};

pub(super) const HOST_CRASHDUMP: Def = Def {
    name: "host_crashdump",
    fields: &[
        (Str, "uuid"),
        (Int, "size"),
        (Date, "timestamp"),
        (Ref, "host"),
        (Map, "other_config"),
    ],
    labels: "",
};

pub(super) const HOST_PATCH: Def = Def {
    name: "host_patch",
    fields: &[
        (Str, "uuid name_label name_description version"),
        (Int, "size"),
        (Bool, "applied"),
        (Date, "timestamp_applied"),
        (Ref, "host pool_patch"),
        (Map, "other_config"),
    ],
    labels: "",
};

pub(super) const POOL_PATCH: Def = Def {
    name: "pool_patch",
    fields: &[
        (Str, "uuid name_label name_description version"),
        (Int, "size"),
        (Bool, "pool_applied"),
        (Ref, "pool_update"),
        (Set, "host_patches after_apply_guidance"),
        (Map, "other_config"),
    ],
    labels: "",
};

pub(super) const POOL_UPDATE: Def = Def {
    name: "pool_update",
    fields: &[
        (Str, "uuid name_label name_description version key"),
        (Int, "installation_size"),
        (Bool, "enforce_homogeneity"),
        (Ref, "vdi"),
        (Set, "after_apply_guidance hosts"),
        (Map, "other_config"),
    ],
    labels: "",
};

pub(super) const CERTIFICATE: Def = Def {
    name: "Certificate",
    fields: &[
        (Str, "uuid name fingerprint"),
        (Date, "not_before not_after"),
        (Ref, "host"),
        (Enum("ca"), "type"),
    ],
    labels: "",
};

pub(super) const PCI: Def = Def {
    name: "PCI",
    fields: &[
        (
            Str,
            "uuid class_name vendor_name device_name pci_id subsystem_vendor_name \
             subsystem_device_name driver_name",
        ),
        (Ref, "host"),
        (Set, "dependencies"),
        (Map, "other_config"),
    ],
    labels: "",
};

pub(super) const PGPU: Def = Def {
    name: "PGPU",
    fields: &[
        (Str, "uuid"),
        (Bool, "is_system_display_device"),
        (Ref, "PCI GPU_group host"),
        (Set, "supported_VGPU_types enabled_VGPU_types resident_VGPUs"),
        (Map, "other_config supported_VGPU_max_capacities compatibility_metadata"),
        (Enum("disabled"), "dom0_access"),
    ],
    labels: "",
};

pub(super) const GPU_GROUP: Def = Def {
    name: "GPU_group",
    fields: &[
        (Str, "uuid name_label name_description"),
        (Set, "PGPUs VGPUs GPU_types supported_VGPU_types enabled_VGPU_types"),
        (Map, "other_config"),
        (Enum("breadth_first"), "allocation_algorithm"),
    ],
    labels: "",
};
