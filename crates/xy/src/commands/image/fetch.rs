//! Downloads a file in a process with few rights.
//!
//! A server may be anybody's. The process that talks to it is this program, executed again, with the file as its standard
//! output: it is nobody, and opens no other file for writing (`image_parser::confine_client`). The list of trusted
//! certificates is the host's. A download that was interrupted goes on where it ended; the checksum of the whole file says
//! whether both parts are of the same one.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Read, Seek as _, SeekFrom, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};
use ureq::Agent;
use ureq::http::{StatusCode, header};
use ureq::tls::{RootCerts, TlsConfig};

use super::checksum::{Checksum, LISTS};
use crate::remote;
use crate::session::{Failure, one_line};

/// The first argument of such a process.
const WORD: &str = "--fetch-image";
/// Its folder is root's.
const FOLDER: &str = "/var/lib/xylem/downloads";
/// Where distributions keep the certificates that they trust.
const CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
const MEMORY_MIB: u64 = 512;
const CONNECT_TIME: Duration = Duration::from_secs(30);
/// A server that sends nothing for so long is given up.
const STALL_TIME: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);
const LIST_BYTES_MAX: u64 = 1 << 20;

/// What the server answered if it has no such file, as an exit status.
const NOT_THERE: u8 = 4;

pub(super) fn check_url(url: &str) -> Result<(), Failure> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') => Ok(()),
        _ => Err(Failure::usage(format!("image pull: {url:?}: expected http://.. or https://.."))),
    }
}

/// The last part of its path.
pub(super) fn file_name(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The checksum in a list beside the file, with the list's name.
pub(super) fn published(url: &str, name: &str) -> Result<Option<(Checksum, String)>, Failure> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    for list in LISTS {
        let beside = format!("{}{list}", &path[..path.len() - name.len()]);
        let download = Download::of(&beside)?;
        download.remove();
        let text = match download.fetch(LIST_BYTES_MAX) {
            Err(Fetched::NotThere) => None,
            Err(Fetched::Failed(failure)) => return Err(failure),
            Ok(mut file) => {
                let mut text = String::new();
                let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
                read.is_ok().then_some(text)
            }
        };
        download.remove();
        if let Some(found) = text.and_then(|text| Checksum::in_list(&text, name)) {
            return Ok(Some((found, list.to_owned())));
        }
    }
    Ok(None)
}

/// Why there is no file.
enum Fetched {
    NotThere,
    Failed(Failure),
}

/// A file that is, or will be, downloaded.
pub(super) struct Download {
    url: String,
    path: PathBuf,
}

impl Download {
    pub(super) fn of(url: &str) -> Result<Self, Failure> {
        let mut folder = std::fs::DirBuilder::new();
        let made = folder.recursive(true).mode(0o700).create(FOLDER);
        made.map_err(|error| Failure::failed(format!("cannot make {FOLDER}: {error}")))?;
        // One name for each URL, whatever is in it.
        let digest = Sha256::digest(url.as_bytes());
        let name = base16ct::lower::encode_string(&digest[..16]);
        Ok(Self { url: url.to_owned(), path: PathBuf::from(FOLDER).join(name) })
    }

    pub(super) fn remove(&self) {
        // What stays is taken up by the next download of the same URL.
        let _left = std::fs::remove_file(&self.path);
    }

    /// The whole file.
    pub(super) fn complete(&self, max: u64) -> Result<File, Failure> {
        self.fetch(max).map_err(|why| match why {
            Fetched::Failed(failure) => failure,
            Fetched::NotThere => {
                Failure::failed(format!("{}: the server has no such file", self.url))
            }
        })
    }

    fn fetch(&self, max: u64) -> Result<File, Fetched> {
        let failed = |why: &dyn std::fmt::Display| {
            Fetched::Failed(Failure::failed(format!("{}: {why}", self.url)))
        };
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let file = options.open(&self.path).map_err(|error| failed(&error))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(failed(&"it is being downloaded already"));
        }
        let child = start(&self.url, &file, max).map_err(|error| failed(&error))?;
        let (status, said) = attend(child, &file).map_err(|error| failed(&error))?;
        if status != Some(0) && file.metadata().is_ok_and(|it| it.len() == 0) {
            // There is nothing to go on with.
            self.remove();
        }
        match status {
            Some(0) => Ok(file),
            Some(code) if code == i32::from(NOT_THERE) => Err(Fetched::NotThere),
            _ if said.is_empty() => Err(failed(&"the process that downloads it was ended")),
            _ => Err(failed(&said)),
        }
    }
}

fn start(url: &str, file: &File, max: u64) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .args([WORD, url, &max.to_string()])
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(Stdio::piped())
        .spawn()
}

/// Waits for it, and ends it if nothing comes any more. Returns its exit status and what it said.
fn attend(mut child: Child, file: &File) -> io::Result<(Option<i32>, String)> {
    let shows = io::stderr().is_terminal();
    let mut last = (file.metadata()?.len(), Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let bytes = file.metadata()?.len();
        if bytes != last.0 {
            last = (bytes, Instant::now());
            if shows {
                let _ = write!(io::stderr(), "\r{} MiB\x1b[K", bytes >> 20);
            }
        } else if last.1.elapsed() > STALL_TIME + CONNECT_TIME {
            child.kill()?;
            child.wait()?;
            let why = format!(
                "nothing came for {} s; try again, and it goes on there",
                STALL_TIME.as_secs()
            );
            return Ok((None, why));
        }
        thread::sleep(LOOK);
    };
    if shows {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        stderr.take(4096).read_to_string(&mut said)?;
    }
    Ok((status.code(), one_line(&said)))
}

/// If the arguments ask for it, this process downloads a file, and that is its exit status.
pub(super) fn become_fetcher(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut words = arguments.into_iter().skip(1);
    if words.next()? != WORD {
        return None;
    }
    let mut word = || words.next().and_then(|word| word.into_string().ok());
    let (url, max) = (word().unwrap_or_default(), word().and_then(|max| max.parse().ok()));
    match max.map(|max| fetch_here(&url, max)) {
        Some(Ok(())) => Some(ExitCode::SUCCESS),
        Some(Err(Stopped::NotThere)) => Some(ExitCode::from(NOT_THERE)),
        Some(Err(Stopped::Because(why))) => {
            let _unheard = writeln!(io::stderr(), "{why}");
            Some(ExitCode::FAILURE)
        }
        None => Some(ExitCode::from(2)),
    }
}

enum Stopped {
    NotThere,
    Because(String),
}

impl<T: std::fmt::Display> From<T> for Stopped {
    fn from(why: T) -> Self {
        Self::Because(why.to_string())
    }
}

fn fetch_here(url: &str, max: u64) -> Result<(), Stopped> {
    let mut file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let agent = agent(url)?;
    image_parser::confine_client(MEMORY_MIB, max.saturating_add(1))?;
    let have = file.seek(SeekFrom::End(0))?;
    let mut request = agent.get(url);
    if have > 0 {
        request = request.header(header::RANGE, format!("bytes={have}-"));
    }
    let response = request.call()?;
    let continues = match response.status() {
        StatusCode::OK => false,
        StatusCode::PARTIAL_CONTENT => {
            let range = response.headers().get(header::CONTENT_RANGE);
            let range = range.and_then(|range| range.to_str().ok()).unwrap_or_default();
            if !range.starts_with(&format!("bytes {have}-")) {
                return Err(Stopped::Because(
                    "the server sends another part than was asked for".to_owned(),
                ));
            }
            true
        }
        // All of it is here already.
        StatusCode::RANGE_NOT_SATISFIABLE if have > 0 => return Ok(()),
        StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::GONE => {
            return Err(Stopped::NotThere);
        }
        status => return Err(Stopped::Because(format!("the server answers {status}"))),
    };
    if !continues {
        file.set_len(0)?;
    }
    let start = if continues { have } else { 0 };
    let mut body = response
        .into_body()
        .into_with_config()
        .limit(u64::MAX)
        .reader()
        .take(max - start.min(max) + 1);
    let came = io::copy(&mut body, &mut file)?;
    if start + came > max {
        file.set_len(0)?;
        return Err(Stopped::Because(format!("the file has more than {max} bytes (--max)")));
    }
    Ok(file.sync_all()?)
}

/// A client of the host's certificates. By https it follows nobody to http.
fn agent(url: &str) -> Result<Agent, String> {
    let secure = url.starts_with("https://");
    let mut tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
    if secure {
        tls = tls.root_certs(host_certificates()?);
    }
    let config = Agent::config_builder()
        .https_only(secure)
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT_TIME))
        .timeout_recv_response(Some(STALL_TIME))
        .tls_config(tls.build())
        .build();
    Ok(config.into())
}

/// Those that this host trusts.
pub(crate) fn host_certificates() -> Result<RootCerts, String> {
    Ok(RootCerts::from(remote::certificates(&host_certificates_pem()?)))
}

/// The same, as they lie there.
pub(crate) fn host_certificates_pem() -> Result<Vec<u8>, String> {
    let found = CERTIFICATES.iter().find_map(|path| std::fs::read(path).ok());
    found.ok_or_else(|| "this host trusts no certificates: install ca-certificates".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_scheme_and_a_file() {
        for (url, is_one) in [
            ("https://example.org/a.img", true),
            ("http://10.0.0.1:8000/a.img", true),
            ("ftp://example.org/a.img", false),
            ("https:///a.img", false),
            ("/srv/a.img", false),
        ] {
            assert_eq!(check_url(url).is_ok(), is_one, "{url}");
        }
        assert_eq!(file_name("https://example.org/x/a.img?token=/b#c"), "a.img");
        assert_eq!(file_name("https://example.org/x/"), "");
    }
}
