//! Which VMs have which tags, as the host's admins say it, and clients that are limited to the VMs of some tags.
//!
//! A file has a line for each tag of a VM: `UUID TAG`. Empty lines and lines that begin with `#` are passed over. Tags of
//! XenAPI are labels, which clients set: they are others, and give nobody a right.

use std::collections::{BTreeMap, BTreeSet};

use api::Object;

use crate::access::{AccessError, each_line};

/// Longest tag.
const TAG_BYTES_MAX: usize = 64;

/// Which VMs a client may have to do with.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Scope {
    /// The whole host.
    #[default]
    Host,
    /// VMs with one of these tags, and nothing else. There is one at least.
    Tagged(BTreeSet<String>),
}

impl Scope {
    /// Its tags; none if it is not limited.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        let tags = match self {
            Self::Host => None,
            Self::Tagged(tags) => Some(tags),
        };
        tags.into_iter().flatten().map(String::as_str)
    }
}

/// The tags of VMs, by their UUIDs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tags(BTreeMap<String, BTreeSet<String>>);

impl Tags {
    /// Reads the file's text.
    ///
    /// # Errors
    /// The first line that is not understood. Of a file that is understood in part nothing is used.
    pub fn parse(text: &str) -> Result<Self, AccessError> {
        let mut tags = Self::default();
        each_line(text, |line| tags.add(line))?;
        Ok(tags)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [vm, tag] = fields[..] else { return Err("not of the form UUID TAG".to_owned()) };
        let uuid = uuid_of(vm).ok_or_else(|| format!("{vm:?} is no UUID"))?;
        check_tag(tag)?;
        self.0.entry(uuid).or_default().insert(tag.to_owned());
        Ok(())
    }

    /// All VMs that have any, with theirs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &BTreeSet<String>)> {
        self.0.iter().map(|(uuid, tags)| (uuid.as_str(), tags))
    }

    /// Whether a client with this scope may have to do with the VM of this UUID.
    #[must_use]
    pub fn permit(&self, scope: &Scope, uuid: &str) -> bool {
        match scope {
            Scope::Host => true,
            Scope::Tagged(wanted) => self.0.get(uuid).is_some_and(|tags| !tags.is_disjoint(wanted)),
        }
    }

    /// Whether it may see this object: of a VM, its devices and operations. Other domains, the host, its networks and its
    /// storage are not for one that is limited.
    #[must_use]
    pub fn permit_object(&self, scope: &Scope, object: &Object) -> bool {
        *scope == Scope::Host
            || match object {
                Object::Vm(Some(vm)) => self.permit(scope, &vm.uuid),
                Object::Device(Some(device)) => self.permit(scope, &device.vm),
                Object::Operation(Some(operation)) => self.permit(scope, &operation.uuid),
                Object::Domain(_)
                | Object::Sr(_)
                | Object::Vdi(_)
                | Object::Network(_)
                | Object::Host(_)
                | Object::Vm(None)
                | Object::Device(None)
                | Object::Operation(None) => false,
            }
    }
}

/// A line of the file.
///
/// # Errors
/// What is wrong with the tag or the UUID.
pub fn tag_line(vm: &str, tag: &str) -> Result<String, String> {
    check_tag(tag)?;
    let uuid = uuid_of(vm).ok_or_else(|| format!("{vm:?} is no UUID"))?;
    Ok(format!("{uuid} {tag}\n"))
}

/// The file's text without this tag of that VM; `None` if it has not got it.
#[must_use]
pub fn without_tag(text: &str, vm: &str, tag: &str) -> Option<String> {
    let uuid = uuid_of(vm);
    let is_other = |line: &&str| {
        let mut fields = line.split_ascii_whitespace();
        let of = fields.next().and_then(uuid_of);
        of.is_none() || of != uuid || fields.next() != Some(tag)
    };
    let rest: String = text.split_inclusive('\n').filter(is_other).collect();
    (rest.len() != text.len()).then_some(rest)
}

pub(crate) fn check_tag(tag: &str) -> Result<(), String> {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if tag.is_empty() || tag.len() > TAG_BYTES_MAX || !tag.bytes().all(is_right) {
        return Err(format!(
            "{tag:?} is no tag: use up to {TAG_BYTES_MAX} letters, digits and . _ -"
        ));
    }
    Ok(())
}

/// As the daemon writes it.
fn uuid_of(text: &str) -> Option<String> {
    let is_right = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    let is_uuid = text.len() == UUID_BYTES && text.bytes().enumerate().all(is_right);
    is_uuid.then(|| text.to_ascii_lowercase())
}

pub(crate) const UUID_BYTES: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "00000000-0000-0000-0000-00000000000a";
    const TWO: &str = "00000000-0000-0000-0000-00000000000b";

    fn scope(tags: &[&str]) -> Scope {
        Scope::Tagged(tags.iter().map(|&it| it.to_owned()).collect())
    }

    #[test]
    fn a_client_sees_the_vms_that_have_one_of_its_tags() {
        let text = format!("# tags\n\n{} a\n{ONE} b\n{TWO} c\n", ONE.to_uppercase());
        let tags = Tags::parse(&text).unwrap();
        for (scope, one, two) in [
            (Scope::Host, true, true),
            (scope(&["a"]), true, false),
            (scope(&["b", "c"]), true, true),
            (scope(&["d", "A"]), false, false),
            (scope(&[]), false, false),
        ] {
            assert_eq!((tags.permit(&scope, ONE), tags.permit(&scope, TWO)), (one, two));
        }
        let rest = without_tag(&text, ONE, "a").unwrap();
        assert!(!Tags::parse(&rest).unwrap().permit(&scope(&["a"]), ONE), "{rest}");
        assert!(Tags::parse(&rest).unwrap().permit(&scope(&["b"]), ONE), "{rest}");
        assert_eq!(without_tag(&rest, ONE, "a"), None);
        assert_eq!(without_tag(&rest, "#", "tags"), None, "comments stay");
        assert_eq!(tag_line(ONE, "a").unwrap(), format!("{ONE} a\n"));
        assert!(tag_line(ONE, "a\nb").is_err() && tag_line("web", "a").is_err());
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        for (line, problem) in [
            ("web a".to_owned(), r#""web" is no UUID"#),
            (ONE.to_owned(), "not of the form UUID TAG"),
            (format!("{ONE} a,b"), r#""a,b" is no tag: use up to 64 letters, digits and . _ -"#),
            (format!("{ONE} a b"), "not of the form UUID TAG"),
        ] {
            let error = Tags::parse(&format!("{TWO} c\n{line}\n")).unwrap_err();
            assert_eq!((error.line, &*error.problem), (2, problem));
        }
    }
}
