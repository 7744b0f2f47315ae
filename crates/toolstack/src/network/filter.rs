//! What guests may send, and whose addresses are replaced by the host's: nftables.
//!
//! A guest's packets are looked at as they leave netback or QEMU, before any bridge, switch or route sees them. So it is the
//! same for all networks. Source: nft(8).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt::Write as _;

use super::Prefix;
use crate::config::Mac;

/// What one interface may send: packets of this MAC address and, if there are any, of these addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Filter {
    /// Unique on this host.
    pub chain: String,
    /// The interface's name.
    pub link: String,
    pub mac: Mac,
    /// Networks, or addresses. If there are none, it may have any.
    pub allowed: Vec<Prefix>,
}

/// A change of what is filtered. Each has the effect of the last one of its kind.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FilterChange {
    Set(Filter),
    /// Forgets this chain.
    Remove(String),
    /// What comes from this address and goes elsewhere has the host's.
    Translate(Ipv4Addr),
    TranslateNoMore(Ipv4Addr),
}

/// Whether a name can stand in a script of nft as it is, and means itself.
pub(super) fn is_plain(name: &str) -> bool {
    name.chars().all(|it| it.is_ascii_alphanumeric() || matches!(it, '.' | '-' | '_'))
}

/// A set of addresses and one rule about all of them: those that are behind NAT reach each other as they are.
const NAT_TABLE: &str = "add table ip xylem\n\
    add set ip xylem behind_nat { type ipv4_addr; }\n\
    add chain ip xylem postrouting { type nat hook postrouting priority 100; }\n\
    flush chain ip xylem postrouting\n\
    add rule ip xylem postrouting ip saddr @behind_nat ip daddr != @behind_nat masquerade\n";

impl FilterChange {
    /// For `nft -f`, which takes all of it or nothing.
    #[must_use]
    pub fn to_nft(&self) -> String {
        match self {
            Self::Set(filter) => filter.to_nft(),
            Self::Remove(chain) => without(chain),
            Self::Translate(guest) => {
                format!("{NAT_TABLE}add element ip xylem behind_nat {{ {guest} }}\n")
            }
            // One that is not there cannot be deleted.
            Self::TranslateNoMore(guest) => format!(
                "{NAT_TABLE}add element ip xylem behind_nat {{ {guest} }}\n\
                 delete element ip xylem behind_nat {{ {guest} }}\n"
            ),
        }
    }
}

/// A chain that is not there cannot be deleted, so it is added first.
fn without(chain: &str) -> String {
    let mut text = "add table netdev xylem\n".to_owned();
    for chain in [chain.to_owned(), targets_of(chain)] {
        let _infallible =
            writeln!(text, "add chain netdev xylem {chain}\nflush chain netdev xylem {chain}");
    }
    for chain in [chain.to_owned(), targets_of(chain)] {
        let _infallible = writeln!(text, "delete chain netdev xylem {chain}");
    }
    text
}

/// The chain about the addresses that neighbour advertisements claim.
fn targets_of(chain: &str) -> String {
    format!("{chain}-nd")
}

impl Filter {
    fn to_nft(&self) -> String {
        let (chain, link) = (&self.chain, &self.link);
        let mut text = without(chain);
        let _infallible = writeln!(
            text,
            "add chain netdev xylem {chain} {{ type filter hook ingress device \"{link}\" priority -500; policy accept; }}"
        );
        let v6: Vec<Prefix> =
            self.allowed.iter().filter(|it| it.address.is_ipv6()).copied().collect();
        // Whoever has IPv6 addresses has one of its link, too.
        let own = Prefix::of(IpAddr::V6(link_local(self.mac)));
        let v6: Vec<Prefix> = if v6.is_empty() { v6 } else { [v6, vec![own]].concat() };
        let targets = targets_of(chain);
        if !v6.is_empty() {
            let _infallible = writeln!(text, "add chain netdev xylem {targets}");
        }
        let mut rule = |chain: &str, rule: &str| {
            let _infallible = writeln!(text, "add rule netdev xylem {chain} {rule}");
        };
        for target in &v6 {
            rule(&targets, &format!("{} return", advertised(*target)));
        }
        if !v6.is_empty() {
            rule(&targets, "counter drop");
        }
        for line in self.rules(&v6) {
            rule(chain, &line);
        }
        text
    }

    fn rules(&self, v6: &[Prefix]) -> Vec<String> {
        let mac = self.mac;
        let mut rules = vec![
            format!("ether saddr != {mac} counter drop"),
            format!("arp saddr ether != {mac} counter drop"),
        ];
        if self.allowed.is_empty() {
            return rules;
        }
        for prefix in self.allowed.iter().filter(|it| it.address.is_ipv4()).map(|it| it.network()) {
            rules.push(format!("arp saddr ip {prefix} accept"));
            rules.push(format!("ip saddr {prefix} accept"));
        }
        // A guest asks whether anybody has its address before it has it, and for one.
        rules.push("arp saddr ip 0.0.0.0 accept".to_owned());
        rules.push("ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept".to_owned());
        if !v6.is_empty() {
            rules.push("icmpv6 type { nd-router-advert, nd-redirect } counter drop".to_owned());
            rules.push(format!("icmpv6 type nd-neighbor-advert jump {}", targets_of(&self.chain)));
            rules.extend(v6.iter().map(|it| format!("ip6 saddr {} accept", it.network())));
            let before =
                "nd-neighbor-solicit, nd-router-solicit, mld-listener-report, mld2-listener-report";
            rules.push(format!("ip6 saddr :: icmpv6 type {{ {before} }} accept"));
        }
        rules.push("counter drop".to_owned());
        rules
    }
}

/// A match of the target address of a neighbour advertisement, which begins 8 bytes into it.
fn advertised(target: Prefix) -> String {
    let IpAddr::V6(address) = target.address else { return String::new() };
    let value = address.to_bits().checked_shr(128 - u32::from(target.bits)).unwrap_or(0);
    match target.bits {
        0 => String::new(),
        bits => format!("@th,64,{bits} {value:#x}"),
    }
}

/// The address that a guest gives itself, of its MAC address (RFC 4291).
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0.map(u16::from);
    Ipv6Addr::new(0xfe80, 0, 0, 0, (a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(allowed: &[&str]) -> Vec<String> {
        let filter = Filter {
            chain: "vif7.0".to_owned(),
            link: "web".to_owned(),
            mac: "00:16:3e:01:02:03".parse().unwrap(),
            allowed: allowed.iter().map(|it| it.parse().unwrap()).collect(),
        };
        let text = FilterChange::Set(filter).to_nft();
        text.lines().map(str::to_owned).collect()
    }

    const FRESH: [&str; 7] = [
        "add table netdev xylem",
        "add chain netdev xylem vif7.0",
        "flush chain netdev xylem vif7.0",
        "add chain netdev xylem vif7.0-nd",
        "flush chain netdev xylem vif7.0-nd",
        "delete chain netdev xylem vif7.0",
        "delete chain netdev xylem vif7.0-nd",
    ];

    #[test]
    fn without_addresses_a_guest_has_to_have_its_mac_address() {
        let mut expected = FRESH.to_vec();
        expected.extend([
            "add chain netdev xylem vif7.0 { type filter hook ingress device \"web\" priority -500; policy accept; }",
            "add rule netdev xylem vif7.0 ether saddr != 00:16:3e:01:02:03 counter drop",
            "add rule netdev xylem vif7.0 arp saddr ether != 00:16:3e:01:02:03 counter drop",
        ]);
        assert_eq!(filter(&[]), expected);
    }

    #[test]
    fn with_addresses_everything_else_is_dropped() {
        let lines = filter(&["10.0.0.5", "10.2.3.4/16"]);
        let rules: Vec<&str> = lines[10..]
            .iter()
            .map(|it| it.strip_prefix("add rule netdev xylem vif7.0 ").unwrap())
            .collect();
        assert_eq!(
            rules,
            [
                "arp saddr ip 10.0.0.5/32 accept",
                "ip saddr 10.0.0.5/32 accept",
                "arp saddr ip 10.2.0.0/16 accept",
                "ip saddr 10.2.0.0/16 accept",
                "arp saddr ip 0.0.0.0 accept",
                "ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept",
                "counter drop",
            ]
        );
    }

    #[test]
    fn neighbours_are_told_of_own_addresses_only() {
        let lines = filter(&["2001:db8::7", "2001:db8:1::/48"]);
        let rules = |chain: &str| -> Vec<String> {
            let start = format!("add rule netdev xylem {chain} ");
            lines.iter().filter_map(|it| it.strip_prefix(&start)).map(str::to_owned).collect()
        };
        assert_eq!(
            rules("vif7.0-nd"),
            [
                "@th,64,128 0x20010db8000000000000000000000007 return",
                "@th,64,48 0x20010db80001 return",
                "@th,64,128 0xfe8000000000000002163efffe010203 return",
                "counter drop",
            ]
        );
        let own = "ip6 saddr fe80::216:3eff:fe01:203/128 accept".to_owned();
        assert!(rules("vif7.0").contains(&own), "{lines:?}");
        assert!(
            rules("vif7.0").contains(&"icmpv6 type nd-neighbor-advert jump vif7.0-nd".to_owned())
        );
    }

    #[test]
    fn names_that_mean_something_to_nft_are_not_plain() {
        for (name, plain) in [
            ("vif7.0", true),
            ("a_b-c", true),
            ("a\"b", false),
            ("a;b", false),
            ("eth*", false),
            ("é", false),
        ] {
            assert_eq!(is_plain(name), plain, "{name}");
        }
    }
}
