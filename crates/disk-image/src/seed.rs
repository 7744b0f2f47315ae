//! The volume that cloud-init looks for at a first boot (its data source "NoCloud"): three files on a CD named `cidata`.
//!
//! Source: ECMA-119 (ISO 9660) and the Joliet specification, for names as they are. The whole volume is some sectors:
//!
//! ```text
//! 0..15 empty | 16 primary, 17 Joliet, 18 end | 19..22 path tables | 23, 24 root folders | files
//! ```

use serde_json::{Value, json};

const SECTOR: usize = 2048;
const LABEL: &str = "cidata";
/// ISO 9660's plain date of nothing: seeds of the same settings are the same bytes.
const NO_DATE: &[u8; 17] = b"0000000000000000\0";

const PATH_TABLES: u32 = 19;
const ROOT: u32 = 23;
const FILES: u32 = 25;

/// Settings of a first boot.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Seed {
    /// Another one makes cloud-init run again.
    pub instance: String,
    pub hostname: String,
    /// Lines as in `authorized_keys`.
    pub ssh_keys: Vec<String>,
    /// Of the image's own user.
    pub password: Option<String>,
    /// In place of our own user data.
    pub user_data: Option<Vec<u8>>,
    pub network: Network,
    /// Of the first interface; any whose name begins with `e` if it is not known.
    pub mac: Option<String>,
}

/// How the first interface gets its address.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Network {
    #[default]
    Dhcp,
    Static {
        /// With the length of its prefix.
        address: String,
        gateway: Option<String>,
        nameservers: Vec<String>,
    },
}

impl Seed {
    /// The three files. JSON is YAML, and needs no rules for quoting.
    #[must_use]
    pub fn files(&self) -> [(&'static str, Vec<u8>); 3] {
        let mut meta = json!({ "instance-id": self.instance, "local-hostname": self.hostname });
        if !self.ssh_keys.is_empty() {
            // Here they hold for user data of others too.
            meta["public-keys"] = json!(self.ssh_keys);
        }
        let user = self.user_data.clone().unwrap_or_else(|| cloud_config(&self.user()));
        [
            ("meta-data", text(&meta)),
            ("user-data", user),
            ("network-config", text(&self.network.config(self.mac.as_deref()))),
        ]
    }

    fn user(&self) -> Value {
        match &self.password {
            None => json!({}),
            Some(password) => json!({
                "password": password,
                "chpasswd": { "expire": false },
                "ssh_pwauth": false,
            }),
        }
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> Vec<u8> {
        volume(&self.files())
    }
}

impl Network {
    /// Version 2 of cloud-init's network configuration. The guest's name of the interface is not known here: Linux calls
    /// a vif `eth0` or `enX0`. Not all that cloud-init writes for can match names.
    fn config(&self, mac: Option<&str>) -> Value {
        let mut interface = match mac {
            Some(mac) => json!({ "match": { "macaddress": mac } }),
            None => json!({ "match": { "name": "e*" } }),
        };
        match self {
            Self::Dhcp => interface["dhcp4"] = json!(true),
            Self::Static { address, gateway, nameservers } => {
                interface["addresses"] = json!([address]);
                if let Some(gateway) = gateway {
                    interface["routes"] = json!([{ "to": "default", "via": gateway }]);
                }
                if !nameservers.is_empty() {
                    interface["nameservers"] = json!({ "addresses": nameservers });
                }
            }
        }
        json!({ "version": 2, "ethernets": { "vif0": interface } })
    }
}

fn text(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("values always serialise");
    text.push(b'\n');
    text
}

fn cloud_config(value: &Value) -> Vec<u8> {
    [&b"#cloud-config\n"[..], &text(value)].concat()
}

/// A name tree of the volume: ISO 9660's own, or Joliet's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Tree {
    Plain,
    Joliet,
}

impl Tree {
    /// UCS-2 for Joliet. Plain names are upper case with a version, which Linux does not show.
    fn name(self, name: &str) -> Vec<u8> {
        match self {
            Self::Plain => format!("{};1", name.to_uppercase()).into_bytes(),
            Self::Joliet => name.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Plain => 0,
            Self::Joliet => 1,
        }
    }

    fn root(self) -> u32 {
        ROOT + self.number()
    }

    /// A text field, filled up with spaces.
    fn field(self, text: &str, length: usize) -> Vec<u8> {
        match self {
            Self::Plain => format!("{text:<length$}").into_bytes(),
            Self::Joliet => {
                let half = length / 2;
                let mut field: Vec<u8> =
                    format!("{text:<half$}").encode_utf16().flat_map(u16::to_be_bytes).collect();
                field.resize(length, 0);
                field
            }
        }
    }
}

/// A number in both byte orders.
fn both32(number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn both16(number: u16) -> [u8; 4] {
    let mut bytes = [0; 4];
    bytes[..2].copy_from_slice(&number.to_le_bytes());
    bytes[2..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a seed is small")
}

fn sectors(bytes: usize) -> u32 {
    size(bytes.div_ceil(SECTOR))
}

/// An entry of a folder.
fn record(name: &[u8], sector: u32, bytes: u32, flags: u8) -> Vec<u8> {
    let mut record = vec![0, 0];
    record.extend(both32(sector));
    record.extend(both32(bytes));
    // 1970-01-01, in UTC.
    record.extend([70, 1, 1, 0, 0, 0, 0]);
    record.extend([flags, 0, 0]);
    record.extend(both16(1));
    record.push(u8::try_from(name.len()).expect("names are short"));
    record.extend(name);
    if record.len() % 2 == 1 {
        record.push(0);
    }
    record[0] = u8::try_from(record.len()).expect("names are short");
    record
}

const FOLDER: u8 = 2;

fn root_record(tree: Tree) -> Vec<u8> {
    record(&[0], tree.root(), size(SECTOR), FOLDER)
}

fn descriptor(tree: Tree, total: u32) -> Vec<u8> {
    let mut it = vec![if tree == Tree::Plain { 1 } else { 2 }];
    it.extend(b"CD001\x01\0");
    it.extend(tree.field("", 32));
    it.extend(tree.field(LABEL, 32));
    it.extend([0; 8]);
    it.extend(both32(total));
    // Joliet is known by its escape sequence.
    let mut escape = [0; 32];
    if tree == Tree::Joliet {
        escape[..3].copy_from_slice(b"%/E");
    }
    it.extend(escape);
    it.extend(both16(1));
    it.extend(both16(1));
    it.extend(both16(u16::try_from(SECTOR).expect("it fits")));
    it.extend(both32(10));
    let tables = PATH_TABLES + 2 * tree.number();
    it.extend(tables.to_le_bytes());
    it.extend([0; 4]);
    it.extend((tables + 1).to_be_bytes());
    it.extend([0; 4]);
    it.extend(root_record(tree));
    it.extend(tree.field("", 128 * 4));
    it.extend(tree.field("", 37 * 3));
    for _ in 0..4 {
        it.extend(NO_DATE);
    }
    it.push(1);
    it
}

/// The path table of a tree that has only its root.
fn path_table(tree: Tree, order: fn(u32) -> [u8; 4], parent: [u8; 2]) -> Vec<u8> {
    let mut it = vec![1, 0];
    it.extend(order(tree.root()));
    it.extend(parent);
    it.extend([0, 0]);
    it
}

/// Content with its names and places.
fn volume(files: &[(&'static str, Vec<u8>)]) -> Vec<u8> {
    // Folders are in the order of their names.
    let mut placed = Vec::new();
    let mut next = FILES;
    for (name, content) in files {
        placed.push((*name, next, content));
        next += sectors(content.len());
    }
    placed.sort_by_key(|(name, ..)| *name);
    let mut volume = vec![0; 16 * SECTOR];
    let mut add = |content: &[u8]| {
        volume.extend(content);
        volume.resize(volume.len().next_multiple_of(SECTOR), 0);
    };
    add(&descriptor(Tree::Plain, next));
    add(&descriptor(Tree::Joliet, next));
    add(b"\xffCD001\x01");
    for tree in [Tree::Plain, Tree::Joliet] {
        add(&path_table(tree, u32::to_le_bytes, [1, 0]));
        add(&path_table(tree, u32::to_be_bytes, [0, 1]));
    }
    for tree in [Tree::Plain, Tree::Joliet] {
        let mut folder = root_record(tree);
        folder.extend(record(&[1], tree.root(), size(SECTOR), FOLDER));
        for (name, sector, content) in &placed {
            folder.extend(record(&tree.name(name), *sector, size(content.len()), 0));
        }
        add(&folder);
    }
    for (_, content) in files {
        add(content);
    }
    volume
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed() -> Seed {
        Seed {
            instance: "i-1".to_owned(),
            hostname: "web1".to_owned(),
            mac: Some("00:16:3e:00:00:01".to_owned()),
            ssh_keys: vec!["ssh-ed25519 AAAA \"me\"".to_owned()],
            ..Seed::default()
        }
    }

    fn content(files: &[(&str, Vec<u8>)], name: &str) -> String {
        let (_, content) = files.iter().find(|(found, _)| *found == name).unwrap();
        String::from_utf8(content.clone()).unwrap()
    }

    #[test]
    fn the_three_files_are_what_cloud_init_reads() {
        let files = seed().files();
        let meta: Value = serde_json::from_str(&content(&files, "meta-data")).unwrap();
        assert_eq!(meta["local-hostname"], "web1");
        assert_eq!(meta["public-keys"][0], "ssh-ed25519 AAAA \"me\"");
        assert_eq!(content(&files, "user-data"), "#cloud-config\n{}\n");
        let network: Value = serde_json::from_str(&content(&files, "network-config")).unwrap();
        assert_eq!(network["ethernets"]["vif0"]["dhcp4"], true);
        assert_eq!(network["ethernets"]["vif0"]["match"]["macaddress"], "00:16:3e:00:00:01");
    }

    #[test]
    fn user_data_of_others_is_left_as_it_is() {
        let own = Seed { user_data: Some(b"#!/bin/sh\n\xff".to_vec()), ..seed() };
        assert_eq!(own.files()[1].1, b"#!/bin/sh\n\xff");
    }

    /// Follows the volume as a reader does: descriptor, root folder, entry, content.
    #[test]
    fn the_volume_has_the_files_under_both_trees() {
        let seed = seed();
        let volume = seed.volume();
        assert_eq!(volume.len() % SECTOR, 0);
        let word = |at: usize| u32::from_le_bytes(volume[at..at + 4].try_into().unwrap()) as usize;
        for (tree, sector) in [(Tree::Plain, 16), (Tree::Joliet, 17)] {
            let at = sector * SECTOR;
            assert_eq!(&volume[at + 1..at + 6], b"CD001");
            assert_eq!(volume[at + 40..at + 72], tree.field(LABEL, 32)[..]);
            assert_eq!(word(at + 80) * SECTOR, volume.len());
            assert_eq!((volume[at + 156], volume[at + 881]), (34, 1));
            let mut entry = word(at + 158) * SECTOR;
            let mut names = Vec::new();
            while volume[entry] != 0 {
                let length = usize::from(volume[entry + 32]);
                names.push((
                    volume[entry + 33..entry + 33 + length].to_vec(),
                    word(entry + 2),
                    word(entry + 10),
                ));
                entry += usize::from(volume[entry]);
            }
            for (name, content) in seed.files() {
                let found = names.iter().find(|(it, ..)| *it == tree.name(name)).unwrap();
                assert_eq!(volume[found.1 * SECTOR..][..found.2], content[..], "{name}");
            }
            assert!(names[2..].is_sorted(), "{names:?}");
        }
    }
}
