//! The page of all keys, `docs/keys.md`, made of the tables that decide about them.
//!
//! `UPDATE_EXPECT=1 cargo test -p toolstack the_page_of_keys` writes it anew.

use std::fmt::Write as _;

use super::hvm::{self, Row};
use super::keys::{self, Treatment};
use super::{disk, vif};

const HEAD: &str = include_str!("keys_head.md");

/// Parameters of a disk, and what becomes of them. The last ones are words without a value.
const DISK: &[(&str, &str)] = &[
    ("access", "read: `r`, `w`, and `w!` for a disk that others may write too"),
    (
        "backend",
        "the name or domid of a driver domain, which serves raw disks by its kernel; see [networking](networking.md)",
    ),
    (
        "backendtype",
        "`phy` and `qdisk` are read, and blkback serves the disk in either case; `tap` and `standalone` are refused",
    ),
    ("devtype", "read: `disk`, `cdrom`"),
    ("format", "read: `raw`, `qcow`, `qcow2`, `qed`, `vhd`, `empty`"),
    ("script", "read; the work of `block` is done without it"),
    ("specification", "`xen` only: virtio disks need a backend that domain 0 does not have"),
    ("target", "read; also a VDI, `SR:VDI`; with `script`, whatever that understands"),
    ("vdev", "read"),
    ("`cdrom`", "read"),
    ("`discard`, `no-discard`", "read"),
    ("`trusted`, `untrusted`", "read"),
    ("`direct-io-safe`", "means nothing here"),
    ("`colo`", "refused"),
];

const VIF: &[(&str, &str)] = &[
    (
        "antispoof",
        "Xylem's own: with `1` a guest has to send from its own addresses; see [networking](networking.md)",
    ),
    ("backend", "the name or domid of a driver domain; see [networking](networking.md)"),
    ("bridge", "read"),
    ("devid", "read"),
    ("gatewaydev", "read, for routes and for scripts; `netdev` is the same"),
    ("ip", "read, for routes, `antispoof`, scripts and other readers of the store"),
    ("mac", "read"),
    ("model", "read for HVM; means nothing otherwise"),
    ("mtu", "read"),
    ("rate", "read"),
    (
        "script",
        "read; the work of `vif-bridge`, `vif-openvswitch`, `vif-route` and `vif-nat` is done without them; see [networking](networking.md)",
    ),
    ("type", "read: `vif`, and for HVM `ioemu`"),
    ("vifname", "read"),
    (
        "vlan",
        "refused: Xen's scripts for Linux do nothing with it; see Open vSwitch in [networking](networking.md)",
    ),
    ("`trusted`, `untrusted`", "read"),
];

/// As an operator reads what a table says.
fn said(begins: &str, harmless: &[&str], reason: &str) -> String {
    let but = match harmless {
        [] => String::new(),
        some => format!(" unless `{}`", some.join("`, `")),
    };
    let reason = reason.strip_prefix("ignored: ").unwrap_or(reason);
    format!("{begins}{but}: {reason}")
}

fn of_table(rows: &[Row], begins: &str, key: &str) -> Option<String> {
    let (_, harmless, reason) = rows.iter().find(|(name, ..)| *name == key)?;
    Some(said(begins, harmless, reason))
}

const REFUSED: &str = "refused";
const WARNED: &str = "ignored with a warning";
const NOTHING: &str = "means nothing";
const WITH_SERVED: &str = "read if QEMU serves a device";
/// Keys for QEMU, which PV and PVH domains have for some devices only.
const BESIDE_SERVED: [&str; 2] = ["device_model_args", "device_model_override"];
const BESIDE_SCREEN: [&str; 5] = ["keymap", "vncdisplay", "vnclisten", "vncpasswd", "vncunused"];

/// Keys that are not read for PV, and what becomes of them there.
const NOT_FOR_PV: [(&str, &str); 5] = [
    ("altp2m", NOTHING),
    ("altp2m_count", NOTHING),
    ("oos", NOTHING),
    ("timer_mode", REFUSED),
    ("vmtrace_buf_kb", REFUSED),
];

/// What becomes of a key for PV and PVH, and for HVM.
fn becomes(key: &str, treatment: Treatment) -> [String; 2] {
    let own = || {
        of_table(hvm::REFUSED, REFUSED, key)
            .or_else(|| of_table(hvm::TOLERATED, WARNED, key))
            .unwrap_or_else(|| match hvm::tests::READ.contains(&key) {
                true => "read".to_owned(),
                false => NOTHING.to_owned(),
            })
    };
    match treatment {
        Treatment::Read if key.starts_with("bootloader") => {
            ["read".to_owned(), format!("{WARNED}: an HVM guest boots by its BIOS")]
        }
        Treatment::Read if key == "vfb" => {
            ["read".to_owned(), format!("{WARNED}: it has a screen of its own")]
        }
        Treatment::Read if key == "device_model_args_pv" => {
            [WITH_SERVED.to_owned(), NOTHING.to_owned()]
        }
        Treatment::Read if BESIDE_SERVED.contains(&key) => {
            [WITH_SERVED.to_owned(), "read".to_owned()]
        }
        Treatment::Read if BESIDE_SCREEN.contains(&key) => {
            ["read beside `vnc = 1`".to_owned(), "read".to_owned()]
        }
        Treatment::Read if ["channel", "p9", "vkb"].contains(&key) => {
            ["read".to_owned(), "read, with `dm_restrict = 0`".to_owned()]
        }
        Treatment::Read if key == "pci" => ["PV: read; PVH: refused".to_owned(), "read".to_owned()],
        Treatment::Read if key == "firmware" => {
            ["read: `pvgrub32`, `pvgrub64`".to_owned(), "read".to_owned()]
        }
        Treatment::Read if key.starts_with("pvshim") => {
            [format!("PVH: read; PV: {NOTHING}"), NOTHING.to_owned()]
        }
        Treatment::Read if key == "e820_host" => {
            [format!("PV: read; PVH: {NOTHING}"), NOTHING.to_owned()]
        }
        Treatment::Read if key == "passthrough" => {
            ["PV: read; PVH: refused unless `disabled`".to_owned(), "read".to_owned()]
        }
        Treatment::Read => {
            let for_pv = NOT_FOR_PV.iter().find(|(name, _)| *name == key);
            let plain = for_pv.map_or("read".to_owned(), |(_, it)| format!("PVH: read; PV: {it}"));
            [plain, "read".to_owned()]
        }
        Treatment::Ignored => [NOTHING.to_owned(), own()],
        Treatment::Refused { harmless, reason } => {
            let text = said(REFUSED, harmless, reason);
            [text.clone(), text]
        }
        Treatment::Tolerated { harmless, reason } => {
            let text = said(WARNED, harmless, reason);
            [text.clone(), text]
        }
        Treatment::RefusedForPvh { harmless, reason } => {
            [said("PVH: refused", harmless, reason), own()]
        }
    }
}

fn page() -> String {
    let mut text = HEAD.to_owned();
    text.push_str("\n## Keys\n\n| key | PV and PVH | HVM |\n|---|---|---|\n");
    for (key, treatment) in keys::all() {
        let [plain, hvm] = becomes(key, treatment);
        let hvm = if plain == hvm { "the same".to_owned() } else { hvm };
        let _ = writeln!(text, "| `{key}` | {plain} | {hvm} |");
    }
    for (title, rows) in [("Parameters of a disk", DISK), ("Parameters of a vif", VIF)] {
        let _ = write!(text, "\n## {title}\n\n| parameter | |\n|---|---|\n");
        for (name, what) in rows {
            let name = if name.contains('`') { (*name).to_owned() } else { format!("`{name}`") };
            let _ = writeln!(text, "| {name} | {what} |");
        }
    }
    text
}

#[test]
fn the_page_of_keys_says_what_becomes_of_each() {
    expect_test::expect_file!["../../../../docs/keys.md"].assert_eq(&page());
}

#[test]
fn no_parameter_is_forgotten() {
    for (rows, parameters) in [(DISK, disk::PARAMETERS), (VIF, vif::PARAMETERS)] {
        let named: Vec<&str> =
            rows.iter().map(|(name, _)| *name).filter(|name| !name.contains('`')).collect();
        assert_eq!(named, parameters);
    }
}
