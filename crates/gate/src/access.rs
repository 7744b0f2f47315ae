//! The file of remote clients: who they are, how they show it, and what they may do.
//!
//! A line each: `token NAME ROLE EXPIRES HASH`, `user NAME ROLE EXPIRES HASH`, `certificate NAME ROLE EXPIRES HASH`,
//! `oidc NAME ROLE EXPIRES HASH`. `EXPIRES` is in
//! seconds since 1970, or `never`. The hash of a token, of a certificate (its DER), and of what a provider of OpenID
//! Connect calls somebody is SHA-256, in hexadecimal; that of a password is Argon2id, as a PHC string. A client that is limited to VMs with a tag has `tags=TAG,TAG` at the end, which an
//! earlier release does not understand: it lets nobody in then. Empty lines and lines that begin with `#` are passed over.

use std::collections::BTreeMap;
use std::fmt;

use api::Role;
use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{CustomizedPasswordHasher as _, PasswordVerifier as _};
use sha2::{Digest as _, Sha256};

use crate::tags::{Scope, check_tag};

/// What tokens begin with, so that people and scanners of leaked secrets know them.
const TOKEN_PREFIX: &str = "xylem-";
/// Longest name of a client.
const NAME_BYTES_MAX: usize = 64;
/// What a client's tags are written after.
const TAGS: &str = "tags=";

/// A remote client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Who {
    pub name: String,
    pub role: Role,
    /// In seconds since 1970.
    pub expires: Option<u64>,
    /// The VMs that it may have to do with.
    pub scope: Scope,
}

impl Who {
    fn is_valid(&self, now_s: u64) -> bool {
        self.expires.is_none_or(|expires| now_s < expires)
    }
}

/// What a client shows.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Kind {
    Token,
    User,
    Certificate,
    Oidc,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Token, Self::User, Self::Certificate, Self::Oidc];

    fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::User => "user",
            Self::Certificate => "certificate",
            Self::Oidc => "oidc",
        }
    }
}

/// A line of the file, for a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    pub kind: &'static str,
    pub who: Who,
}

/// The secret of a new entry, by its hash.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Secret {
    Token([u8; 32]),
    /// A PHC string.
    Password(String),
    Certificate([u8; 32]),
    Oidc([u8; 32]),
}

/// A line of the file is not understood.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct AccessError {
    pub line: usize,
    pub problem: String,
}

/// The file's content.
#[derive(Clone, Default)]
pub struct Access {
    tokens: BTreeMap<[u8; 32], Who>,
    certificates: BTreeMap<[u8; 32], Who>,
    oidc: BTreeMap<[u8; 32], Who>,
    users: BTreeMap<String, (Who, String)>,
    entries: Vec<Entry>,
}

/// Hashes are nobody's business.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Access {
    /// Reads the file's text.
    ///
    /// # Errors
    /// The first line that is not understood. A file of which a part is understood lets nobody in by mistake, so none of it
    /// is used.
    pub fn parse(text: &str) -> Result<Self, AccessError> {
        let mut access = Self::default();
        each_line(text, |line| access.add(line))?;
        Ok(access)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let (kind, name, role, expires, hash, tags) = match fields[..] {
            [kind, name, role, expires, hash] => (kind, name, role, expires, hash, None),
            [kind, name, role, expires, hash, tags] => {
                (kind, name, role, expires, hash, Some(tags))
            }
            _ => return Err("not of the form KIND NAME ROLE EXPIRES HASH [tags=..]".to_owned()),
        };
        let kind = Kind::ALL
            .into_iter()
            .find(|it| it.as_str() == kind)
            .ok_or_else(|| format!("{kind:?} is none of token, user, certificate and oidc"))?;
        check_name(name)?;
        let role = Role::of(role).ok_or_else(|| format!("{role:?} is no role"))?;
        let expires = match expires {
            "never" => None,
            seconds => Some(seconds.parse().map_err(|_| format!("{seconds:?} is no time"))?),
        };
        if self.entries.iter().any(|it| it.who.name == name) {
            return Err(format!("there is another client named {name}"));
        }
        let scope = tags.map_or(Ok(Scope::Host), scope_of)?;
        let who = Who { name: name.to_owned(), role, expires, scope };
        match kind {
            Kind::Token => drop(self.tokens.insert(digest_of(hash)?, who.clone())),
            Kind::Certificate => drop(self.certificates.insert(digest_of(hash)?, who.clone())),
            Kind::Oidc => {
                if self.oidc.insert(digest_of(hash)?, who.clone()).is_some() {
                    return Err("there is another client whom the provider calls so".to_owned());
                }
            }
            Kind::User => {
                let known = PasswordHash::new(hash).map_err(|error| error.to_string())?;
                if known.algorithm.as_str() != "argon2id" {
                    return Err(format!("{} is no argon2id", known.algorithm));
                }
                self.users.insert(name.to_owned(), (who.clone(), hash.to_owned()));
            }
        }
        self.entries.push(Entry { kind: kind.as_str(), who });
        Ok(())
    }

    /// All clients in the order of the file.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whose token this is, if it has not expired. How long this takes tells nothing of other tokens: they are found by their
    /// hash.
    #[must_use]
    pub fn token(&self, token: &str, now_s: u64) -> Option<&Who> {
        self.tokens.get(&token_hash(token)).filter(|who| who.is_valid(now_s))
    }

    /// Whose certificate this is, by its DER.
    #[must_use]
    pub fn certificate(&self, der: &[u8], now_s: u64) -> Option<&Who> {
        self.certificates.get(&sha256(der)).filter(|who| who.is_valid(now_s))
    }

    /// Whom the provider of OpenID Connect calls this.
    #[must_use]
    pub fn oidc(&self, value: &str, now_s: u64) -> Option<&Who> {
        self.oidc.get(&sha256(value.as_bytes())).filter(|who| who.is_valid(now_s))
    }

    /// Whose password this is. An unknown name takes as long as a wrong password.
    #[must_use]
    pub fn password(&self, name: &str, password: &str, now_s: u64) -> Option<&Who> {
        /// Of no password.
        const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let known = self.users.get(name);
        let hash = known.map_or(NOBODY, |(_, hash)| hash);
        let is_right = PasswordHash::new(hash).is_ok_and(|hash| {
            Argon2::default().verify_password(password.as_bytes(), &hash).is_ok()
        });
        known.filter(|_| is_right).map(|(who, _)| who).filter(|who| who.is_valid(now_s))
    }

    /// A client that is still in the file under this name, as a session has to know.
    #[must_use]
    pub fn named(&self, name: &str, now_s: u64) -> Option<&Who> {
        self.entries.iter().map(|it| &it.who).find(|who| who.name == name && who.is_valid(now_s))
    }
}

/// A new token of 32 random bytes, and its hash for the file.
#[must_use]
pub(crate) fn token_of(random: &[u8; 32]) -> (String, [u8; 32]) {
    let token = format!("{TOKEN_PREFIX}{}", base16ct::lower::encode_string(random));
    let hash = token_hash(&token);
    (token, hash)
}

impl Secret {
    /// A new token of 32 random bytes, and its text for the client.
    #[must_use]
    pub fn token(random: &[u8; 32]) -> (Self, String) {
        let (token, hash) = token_of(random);
        (Self::Token(hash), token)
    }

    /// Of a certificate by its DER.
    #[must_use]
    pub fn certificate(der: &[u8]) -> Self {
        Self::Certificate(sha256(der))
    }

    /// Of what a provider of OpenID Connect calls somebody.
    #[must_use]
    pub fn oidc(value: &str) -> Self {
        Self::Oidc(sha256(value.as_bytes()))
    }
}

/// A line of the file.
///
/// # Errors
/// What is wrong with the name.
pub fn entry_line(who: &Who, secret: &Secret) -> Result<String, String> {
    check_name(&who.name)?;
    let (kind, hash) = match secret {
        Secret::Token(hash) => (Kind::Token, base16ct::lower::encode_string(hash)),
        Secret::Certificate(hash) => (Kind::Certificate, base16ct::lower::encode_string(hash)),
        Secret::Oidc(hash) => (Kind::Oidc, base16ct::lower::encode_string(hash)),
        Secret::Password(hash) => (Kind::User, hash.clone()),
    };
    let expires = who.expires.map_or("never".to_owned(), |it| it.to_string());
    let tags: Vec<_> = who.scope.tags().collect();
    tags.iter().try_for_each(|tag| check_tag(tag))?;
    let tags = match who.scope {
        Scope::Host => String::new(),
        Scope::Tagged(_) => format!(" {TAGS}{}", tags.join(",")),
    };
    let (kind, role) = (kind.as_str(), who.role.as_str());
    let line = format!("{kind} {} {role} {expires} {hash}{tags}", who.name);
    Ok(line + "\n")
}

/// Takes the lines of a file, but for empty ones and those that begin with `#`, up to the first that is not understood.
pub(crate) fn each_line(
    text: &str,
    mut take: impl FnMut(&str) -> Result<(), String>,
) -> Result<(), AccessError> {
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            take(line).map_err(|problem| AccessError { line: at + 1, problem })?;
        }
    }
    Ok(())
}

/// What follows a client's hash.
fn scope_of(text: &str) -> Result<Scope, String> {
    let tags = text.strip_prefix(TAGS).ok_or_else(|| format!("{text:?} is not tags=.."))?;
    let tags = tags.split(',').map(|tag| check_tag(tag).map(|()| tag.to_owned()));
    tags.collect::<Result<_, _>>().map(Scope::Tagged)
}

/// The file's text without the client of that name; `None` if there is none.
#[must_use]
pub fn without(text: &str, name: &str) -> Option<String> {
    let is_other = |line: &&str| {
        line.trim_start().starts_with('#') || line.split_ascii_whitespace().nth(1) != Some(name)
    };
    let rest: String = text.split_inclusive('\n').filter(is_other).collect();
    (rest.len() != text.len()).then_some(rest)
}

/// The Argon2id hash of a password with 16 random bytes, as a PHC string.
///
/// # Errors
/// The password cannot be hashed: it is too long.
pub fn hash_password(password: &str, salt: &[u8; 16]) -> Result<String, String> {
    let hash = Argon2::default()
        .hash_password_customized(password.as_bytes(), salt, None, None, argon2::Params::default())
        .map_err(|error| error.to_string())?;
    Ok(hash.to_string())
}

fn check_name(name: &str) -> Result<(), String> {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_right) {
        return Err(format!(
            "{name:?} is no name: use up to {NAME_BYTES_MAX} letters, digits and . _ @ -"
        ));
    }
    Ok(())
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn token_hash(token: &str) -> [u8; 32] {
    sha256(token.as_bytes())
}

fn digest_of(text: &str) -> Result<[u8; 32], String> {
    let mut digest = [0; 32];
    match base16ct::mixed::decode(text, &mut digest) {
        Ok(bytes) if bytes.len() == 32 => Ok(digest),
        _ => Err("the hash is not one of 64 hexadecimal digits".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str, role: Role, expires: Option<u64>) -> Who {
        Who { name: name.to_owned(), role, expires, scope: Scope::Host }
    }

    #[test]
    fn clients_are_known_by_token_password_and_certificate() {
        let (secret, token) = Secret::token(&[7; 32]);
        let ann = who("ann", Role::Admin, None);
        let backup = who("backup", Role::Operator, Some(100));
        let ci = who("ci@lab", Role::Viewer, None);
        let password = Secret::Password(hash_password("correct horse", &[1; 16]).unwrap());
        let text = [
            "# clients\n\n".to_owned(),
            entry_line(&backup, &secret).unwrap(),
            entry_line(&ann, &password).unwrap(),
            entry_line(&ci, &Secret::certificate(b"der")).unwrap(),
        ]
        .concat();
        let access = Access::parse(&text).unwrap();
        assert_eq!(access.token(&token, 99), Some(&backup));
        assert_eq!(access.token(&token, 100), None, "it has expired");
        assert_eq!(access.token(&token[1..], 99), None);
        assert_eq!(access.password("ann", "correct horse", 0), Some(&ann));
        assert_eq!(access.password("ann", "correct horsf", 0), None);
        assert_eq!(access.password("backup", &token, 0), None, "a token is no password");
        assert_eq!(access.password("eve", "", 0), None);
        assert_eq!(access.certificate(b"der", 0), Some(&ci));
        assert_eq!(access.certificate(b"red", 0), None);
        assert_eq!(access.named("backup", 99), Some(&backup));
        assert_eq!(access.named("backup", 100), None);
        assert!(!format!("{access:?}").contains("argon2"), "{access:?}");
        let rest = Access::parse(&without(&text, "backup").unwrap()).unwrap();
        assert_eq!(rest.token(&token, 99), None);
        assert_eq!(rest.entries().len(), 2);
        assert_eq!(without(&text, "clients"), None);
    }

    #[test]
    fn a_client_may_be_limited_to_vms_with_a_tag() {
        let tags = ["team-a", "team-b"].map(str::to_owned).into();
        let ann = Who { scope: Scope::Tagged(tags), ..who("ann", Role::Operator, None) };
        let (secret, token) = Secret::token(&[7; 32]);
        let line = entry_line(&ann, &secret).unwrap();
        assert!(line.ends_with(" tags=team-a,team-b\n"), "{line}");
        assert_eq!(Access::parse(&line).unwrap().token(&token, 0), Some(&ann));
        // Nothing that is said of tags makes it the whole host.
        for scope in ["", "a,", "a b", "a\n"] {
            let scope = Scope::Tagged([scope.to_owned()].into());
            entry_line(&Who { scope, ..ann.clone() }, &secret).unwrap_err();
        }
        let none = entry_line(&Who { scope: Scope::Tagged([].into()), ..ann }, &secret).unwrap();
        Access::parse(&none).unwrap_err();
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        let hash = "0".repeat(64);
        let ok = format!("token a viewer never {hash}\n");
        for (line, problem) in [
            (
                "token a viewer never".to_owned(),
                "not of the form KIND NAME ROLE EXPIRES HASH [tags=..]",
            ),
            (format!("token b viewer never {hash} a"), r#""a" is not tags=.."#),
            (
                format!("token b viewer never {hash} tags="),
                r#""" is no tag: use up to 64 letters, digits and . _ -"#,
            ),
            (
                format!("cookie b viewer never {hash}"),
                r#""cookie" is none of token, user, certificate and oidc"#,
            ),
            (
                format!("token b/ viewer never {hash}"),
                r#""b/" is no name: use up to 64 letters, digits and . _ @ -"#,
            ),
            (format!("token b root never {hash}"), r#""root" is no role"#),
            (format!("token b viewer soon {hash}"), r#""soon" is no time"#),
            (format!("token a viewer never {hash}"), "there is another client named a"),
            ("token b viewer never 00".to_owned(), "the hash is not one of 64 hexadecimal digits"),
        ] {
            let error = Access::parse(&format!("{ok}{line}\n")).unwrap_err();
            assert_eq!((error.line, &*error.problem), (2, problem));
        }
        let weak = Access::parse("user a admin never $2y$10$abcdefghijklmnopqrstuv").unwrap_err();
        assert_eq!(weak.line, 1);
    }
}
