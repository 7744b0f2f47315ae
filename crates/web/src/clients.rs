//! Changes of the file of clients.

use std::fs::{self, File, Permissions};
use std::io::{BufRead as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use gate::{Access, Secret, Who, entry_line, hash_password, without};

use crate::options::{Change, New};
use crate::shared::{random, unix_s};
use crate::tls;

const DAY_S: u64 = 24 * 60 * 60;
/// A shorter one is refused.
const PASSWORD_CHARS_MIN: usize = 10;

pub(crate) fn run(file: &Path, what: Change) -> Result<()> {
    let text = text_of(file)?;
    let access = Access::parse(&text).with_context(|| file.display().to_string())?;
    match what {
        Change::List => {
            list(&access);
            Ok(())
        }
        Change::Remove(name) => {
            let Some(rest) = without(&text, &name) else {
                bail!("there is no client named {name}")
            };
            replace(file, &rest)
        }
        Change::AddToken(new) => {
            let (secret, token) = Secret::token(&random::<32>()?);
            add(file, &text, &new, &secret)?;
            println!("{token}");
            Ok(())
        }
        Change::AddUser(new) => {
            let mut password = String::new();
            std::io::stdin().lock().read_line(&mut password).context("cannot read the password")?;
            let password = password.trim_end_matches(['\r', '\n']);
            if password.chars().count() < PASSWORD_CHARS_MIN {
                bail!("a password has {PASSWORD_CHARS_MIN} characters or more");
            }
            let hash = hash_password(password, &random::<16>()?).map_err(anyhow::Error::msg)?;
            add(file, &text, &new, &Secret::Password(hash))
        }
        Change::AddCertificate(new, certificate) => {
            let chain = tls::certificates(&certificate)?;
            let first = chain.first().context("no certificate")?;
            add(file, &text, &new, &Secret::certificate(first))
        }
        Change::AddOidc(new, called) => {
            let called = called.as_ref().unwrap_or(&new.name);
            add(file, &text, &new, &Secret::oidc(called))
        }
    }
}

fn list(access: &Access) {
    println!("{:<24} {:<12} {:<9} {:<12} tags", "name", "by", "role", "expires");
    for entry in access.entries() {
        let expires = match entry.who.expires {
            None => "never".to_owned(),
            Some(at) if at <= unix_s() => "expired".to_owned(),
            Some(at) => format!("in {} days", (at - unix_s()).div_ceil(DAY_S)),
        };
        let Who { name, role, .. } = &entry.who;
        let tags = entry.who.scope.tags().collect::<Vec<_>>().join(",");
        let line =
            format!("{name:<24} {:<12} {:<9} {expires:<12} {tags}", entry.kind, role.as_str());
        println!("{}", line.trim_end());
    }
}

fn add(file: &Path, text: &str, new: &New, secret: &Secret) -> Result<()> {
    let expires = new.days.map(|days| unix_s().saturating_add(days.saturating_mul(DAY_S)));
    let who = Who { name: new.name.clone(), role: new.role, expires, scope: new.scope.clone() };
    let line = entry_line(&who, secret).map_err(anyhow::Error::msg)?;
    let text = with_line(text, &line);
    Access::parse(&text).with_context(|| file.display().to_string())?;
    replace(file, &text)
}

/// The text of a file of lines; of one that is not there none.
pub(crate) fn text_of(file: &Path) -> Result<String> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// That text with one more line.
pub(crate) fn with_line(text: &str, line: &str) -> String {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}{line}")
}

/// Replaces the file as a whole. Its owner and mode stay; a new one is for the group of its folder to read, which is that of
/// the user as whom `xylem-web` runs.
pub(crate) fn replace(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    let write = || {
        let before = fs::metadata(file).ok();
        let _left_over = fs::remove_file(&new);
        let mut to = File::options().write(true).create_new(true).mode(0o640).open(&new)?;
        to.write_all(text.as_bytes())?;
        if let Some(before) = before {
            fchown(&to, Some(before.uid()), Some(before.gid()))?;
            to.set_permissions(Permissions::from_mode(before.mode() & 0o777))?;
        }
        to.sync_all()?;
        fs::rename(&new, file)
    };
    let written = write();
    if written.is_err() {
        let _none = fs::remove_file(&new);
    }
    written.with_context(|| format!("cannot write {}", file.display()))
}
