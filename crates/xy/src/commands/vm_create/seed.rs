//! The settings of a first boot, from the command's options.

use std::io::Read as _;
use std::net::IpAddr;

use disk_image::seed::{Network, Seed};

use super::usage;
use crate::commands::create;
use crate::options::Options;
use crate::session::Failure;

/// More than any user data; cloud-init's own limits are smaller.
const USER_DATA_BYTES_MAX: u64 = 1 << 20;
const KINDS_OF_KEYS: [&str; 4] = ["ssh-", "ecdsa-", "sk-ssh-", "sk-ecdsa-"];

pub(super) fn read(name: &str, options: &Options) -> Result<Seed, Failure> {
    let mut ssh_keys = Vec::new();
    for file in options.values("ssh-key") {
        ssh_keys.extend(keys(file, &create::text(file)?)?);
    }
    let user_data = options.value("user-data").map(bytes).transpose()?;
    let password = options.value("password-file").map(first_line).transpose()?;
    if user_data.is_some() && password.is_some() {
        return Err(usage(
            "--user-data and --password-file: the password belongs into the user data then",
        ));
    }
    let instance = create::text("/proc/sys/kernel/random/uuid")?.trim().to_owned();
    let network = network(options.value("ip"), options.value("gateway"), &options.values("dns"))?;
    let hostname = name.to_owned();
    Ok(Seed { instance, hostname, ssh_keys, password, user_data, network, mac: None })
}

/// An address of Xen's range that nobody else has, but for one chance in eight million.
pub(super) fn fresh_mac() -> Result<String, Failure> {
    let uuid = create::text("/proc/sys/kernel/random/uuid")?;
    let digits: Vec<u8> =
        uuid.bytes().filter_map(|digit| char::from(digit).to_digit(16)?.try_into().ok()).collect();
    let [a, b, c, d, e, f, ..] = digits[..] else {
        return Err(Failure::failed("the kernel has no random numbers"));
    };
    Ok(format!("00:16:3e:{:x}{b:x}:{c:x}{d:x}:{e:x}{f:x}", a & 7))
}

/// The keys in a file.
fn keys(file: &str, text: &str) -> Result<Vec<String>, Failure> {
    if text.contains("PRIVATE KEY") {
        return Err(Failure::failed(format!(
            "{file}: a private key; the public one is in {file}.pub"
        )));
    }
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    // Options may stand before a key.
    let is_key = |line: &String| {
        line.split_whitespace().any(|word| KINDS_OF_KEYS.iter().any(|kind| word.starts_with(kind)))
    };
    match keys.iter().find(|line| !is_key(line)) {
        None if !keys.is_empty() => Ok(keys),
        None => Err(Failure::failed(format!("{file}: has no public key"))),
        Some(_) => Err(Failure::failed(format!("{file}: a line that is no public key of SSH"))),
    }
}

fn bytes(file: &str) -> Result<Vec<u8>, Failure> {
    let failed =
        |why: &dyn std::fmt::Display| Failure::failed(format!("cannot read {file}: {why}"));
    let mut all = Vec::new();
    std::fs::File::open(file)
        .and_then(|open| open.take(USER_DATA_BYTES_MAX + 1).read_to_end(&mut all))
        .map_err(|error| failed(&error))?;
    match all.len() as u64 > USER_DATA_BYTES_MAX {
        true => Err(failed(&"more than 1 MiB")),
        false => Ok(all),
    }
}

fn first_line(file: &str) -> Result<String, Failure> {
    let text = create::text(file)?;
    let line = text.lines().next().unwrap_or_default();
    match line.is_empty() {
        true => Err(Failure::failed(format!("{file}: its first line is empty"))),
        false => Ok(line.to_owned()),
    }
}

fn network(ip: Option<&str>, gateway: Option<&str>, dns: &[&str]) -> Result<Network, Failure> {
    let address = |option: &str, text: &str| {
        let wrong = |_| usage(format!("{option} {text:?}: not an address"));
        text.parse::<IpAddr>().map_err(wrong).map(|it| it.to_string())
    };
    let Some(ip) = ip else {
        return match gateway.is_some() || !dns.is_empty() {
            true => Err(usage("--gateway and --dns come with --ip; DHCP says both by itself")),
            false => Ok(Network::Dhcp),
        };
    };
    let (plain, length) = ip.split_once('/').ok_or_else(|| {
        usage(format!("--ip {ip:?}: the length of its prefix is missing, as in 192.0.2.5/24"))
    })?;
    let plain = address("--ip", plain)?;
    let most = if plain.contains(':') { 128 } else { 32 };
    let length: u8 = length
        .parse()
        .ok()
        .filter(|&length| length <= most)
        .ok_or_else(|| usage(format!("--ip {ip:?}: {length:?} is no length of a prefix")))?;
    Ok(Network::Static {
        address: format!("{plain}/{length}"),
        gateway: gateway.map(|text| address("--gateway", text)).transpose()?,
        nameservers: dns.iter().map(|text| address("--dns", text)).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_keys_are_taken_and_private_ones_refused() {
        let one = "ssh-ed25519 AAAA me@here";
        assert_eq!(keys("k", &format!("# mine\n\n{one}\n")), Ok(vec![one.to_owned()]));
        for (text, why) in [
            (
                "-----BEGIN OPENSSH PRIVATE KEY-----\n",
                "k: a private key; the public one is in k.pub",
            ),
            ("", "k: has no public key"),
            ("hello world\n", "k: a line that is no public key of SSH"),
        ] {
            assert_eq!(keys("k", text), Err(Failure::failed(why)));
        }
    }

    #[test]
    fn an_address_is_one_of_xens() {
        let mac = fresh_mac().unwrap();
        assert!(
            mac.starts_with("00:16:3e:") && mac.len() == 17 && mac.as_bytes()[9] < b'8',
            "{mac}"
        );
    }

    #[test]
    fn addresses_are_checked() {
        assert_eq!(network(None, None, &[]), Ok(Network::Dhcp));
        let fixed = network(Some("192.0.2.5/24"), Some("192.0.2.1"), &["2001:db8::1"]).unwrap();
        let Network::Static { address, gateway, nameservers } = fixed else { panic!("DHCP") };
        assert_eq!((address.as_str(), gateway.as_deref()), ("192.0.2.5/24", Some("192.0.2.1")));
        assert_eq!(nameservers, ["2001:db8::1"]);
        for (ip, gateway) in [
            (Some("192.0.2.5"), None),
            (Some("192.0.2.5/33"), None),
            (Some("192.0.2/24"), None),
            (Some("192.0.2.5/24"), Some("router")),
            (None, Some("192.0.2.1")),
        ] {
            assert!(network(ip, gateway, &[]).is_err(), "{ip:?} {gateway:?}");
        }
    }
}
