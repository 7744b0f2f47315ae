//! A host elsewhere, asked through its `xylem-web`.

mod socket;

pub(crate) use socket::Attached;

use std::fmt;
use std::io::{BufRead as _, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::client::{CallError, News};
use api::{Answer, LINE_BYTES_MAX, Reply, Request, WireError, decode_answer};
use serde_json::Value;
use ureq::http::StatusCode;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, SendBody};

use crate::session::Failure;

const CONNECT_TIME: Duration = Duration::from_secs(10);
/// For the host to open a disk that is sent.
const CONTINUE_TIME: Duration = Duration::from_secs(60);
/// Where the token is looked for, below the home directory.
const TOKEN_FILE: &str = ".config/xylem/token";
/// Of an error's text.
const PROBLEM_BYTES_MAX: u64 = 64 << 10;

/// Commands that use programs of the host without asking xylemd, or hand it a connection; and why.
const ON_THE_HOST: [(&str, &str); 2] = [
    ("adopt", "ends processes of the other toolstack and takes its files away"),
    ("migrate-receive", "is the other end of a connection by ssh"),
];

/// What is said on the command line, or by the environment, of another host.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) url: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
}

impl Place {
    /// What was not given on the command line.
    fn or_environment(self) -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty());
        let url = self.url.or_else(|| variable("XYLEM_HOST")?.into_string().ok());
        let ca = self.ca.or_else(|| variable("XYLEM_CA").map(PathBuf::from));
        Self { url, ca, ..self }
    }

    /// The host that is meant; `None` if it is this one.
    pub(crate) fn find(self) -> Result<Option<Remote>, Failure> {
        let place = self.or_environment();
        let Some(url) = &place.url else { return Ok(None) };
        let url = url.trim_end_matches('/').to_owned();
        is_safe(&url).map_err(|why| Failure::usage(format!("--host {url}: {why}")))?;
        let token = place.token()?;
        let agent = agent(&url, place.ca.as_deref())
            .map_err(|why| Failure::failed(format!("--host {url}: {why}")))?;
        Ok(Some(Remote { agent, url, token, ca: place.ca }))
    }

    fn token(&self) -> Result<String, Failure> {
        if self.token_file.is_none()
            && let Some(token) = std::env::var("XYLEM_TOKEN").ok().filter(|it| !it.is_empty())
        {
            return Ok(token);
        }
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(TOKEN_FILE));
        let path = self.token_file.clone().or_else(home).unwrap_or_else(|| TOKEN_FILE.into());
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Failure::failed(format!(
                "no token for the host: set XYLEM_TOKEN, or put one into {}: {error}",
                path.display()
            ))
        })?;
        Ok(text.trim().to_owned())
    }
}

/// A token goes by TLS, or to this very machine.
fn is_safe(url: &str) -> Result<(), &'static str> {
    if let Some(rest) = url.strip_prefix("http://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        // What stands before an @ is a user's name.
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let is_here = ["localhost", "[::1]"].contains(&host)
            || host.parse::<std::net::Ipv4Addr>().is_ok_and(|it| it.is_loopback());
        return if is_here { Ok(()) } else { Err("use https, so that nobody reads the token") };
    }
    match url.strip_prefix("https://") {
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') => Ok(()),
        _ => Err("not a URL such as https://host:8443"),
    }
}

/// A host that is asked by HTTP.
pub(crate) struct Remote {
    agent: Agent,
    url: String,
    token: String,
    ca: Option<PathBuf>,
}

/// The token is nobody's business.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Remote {
    /// Why a command cannot be run from here; `None` if it can.
    pub(crate) fn refusal(&self, command: &str) -> Option<String> {
        ON_THE_HOST.iter().find(|(name, _)| *name == command).map(|(_, why)| {
            format!(
                "{command} works on the host itself only, since it {why}: log in there, or leave out --host"
            )
        })
    }

    /// As [`api::client::Client::call`].
    pub(crate) fn call(
        &self,
        request: &Request,
        mut on_news: impl FnMut(News),
    ) -> Result<Reply, CallError> {
        let reply = self.follow(request, |news| {
            on_news(news);
            ControlFlow::Continue(())
        })?;
        reply.ok_or(CallError::Closed)
    }

    /// As `call`, until `on_news` has heard enough; then there is no reply.
    pub(crate) fn follow(
        &self,
        request: &Request,
        mut on_news: impl FnMut(News) -> ControlFlow<()>,
    ) -> Result<Option<Reply>, CallError> {
        let mut fields = serde_json::to_value(request).unwrap_or_default();
        let op = fields.as_object_mut().and_then(|it| it.remove("op"));
        let op = op.as_ref().and_then(Value::as_str).unwrap_or_default();
        let sent = self
            .agent
            .post(format!("{}/v1/requests/{op}", self.url))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .header("accept", "application/x-ndjson")
            .send(fields.to_string());
        let response = sent.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let body = response.into_body().into_with_config().limit(u64::MAX).reader();
        if status != StatusCode::OK {
            return Err(CallError::Refused(self.problem(status, body)));
        }
        let mut reader = BufReader::new(body);
        loop {
            let mut line = Vec::new();
            let max = LINE_BYTES_MAX as u64 + 1;
            reader.by_ref().take(max).read_until(b'\n', &mut line).map_err(CallError::Broken)?;
            match line.pop() {
                Some(b'\n') => {}
                Some(_) if line.len() >= LINE_BYTES_MAX => {
                    return Err(CallError::Wire(WireError::TooLong));
                }
                _ => return Err(CallError::Closed),
            }
            let news = match decode_answer(&line).map_err(CallError::Wire)? {
                Answer::Progress(progress) => News::Progress(progress),
                Answer::Event(event) => News::Event(event),
                Answer::Warning(line) => News::Warning(line),
                Answer::Changed(paths) => News::Changed(paths),
                Answer::Ok(reply) => return Ok(Some(reply)),
                Answer::Error(message) => return Err(CallError::Refused(message)),
            };
            if on_news(news).is_break() {
                return Ok(None);
            }
        }
    }

    /// Reads what is at this path.
    pub(crate) fn get(&self, path: &str) -> Result<impl Read + use<>, String> {
        let sent = self
            .agent
            .get(format!("{}{path}", self.url))
            .header("authorization", format!("Bearer {}", self.token))
            .call();
        let response = sent.map_err(|error| self.unreachable(&error).to_string())?;
        let status = response.status();
        let body = response.into_body().into_with_config().limit(u64::MAX).reader();
        match status {
            StatusCode::OK => Ok(body),
            _ => Err(self.problem(status, body)),
        }
    }

    /// Sends all of this to that path.
    pub(crate) fn put(&self, path: &str, mut from: impl Read) -> Result<(), String> {
        let sent = self
            .agent
            .put(format!("{}{path}", self.url))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/octet-stream")
            .header("expect", "100-continue")
            .send(SendBody::from_reader(&mut from));
        let response = sent.map_err(|error| self.unreachable(&error).to_string())?;
        let status = response.status();
        match status {
            StatusCode::OK => Ok(()),
            _ => Err(self.problem(status, response.into_body().into_reader())),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> CallError {
        CallError::Refused(format!("cannot reach {}: {error}", self.url))
    }

    /// What the host says of a request that was not done.
    fn problem(&self, status: StatusCode, body: impl std::io::Read) -> String {
        let mut text = String::new();
        let _cut = body.take(PROBLEM_BYTES_MAX).read_to_string(&mut text);
        let detail = serde_json::from_str::<Value>(&text).ok();
        let detail = detail.as_ref().and_then(|it| it.get("detail")?.as_str());
        match detail {
            Some(detail) if status == StatusCode::CONFLICT => detail.to_owned(),
            Some(detail) => format!("{}: {detail}", self.url),
            None => format!("{} answers {status}; is it a xylem-web?", self.url),
        }
    }
}

fn agent(url: &str, ca: Option<&Path>) -> Result<Agent, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    if let Some(path) = ca {
        let pem = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let roots = RootCerts::from(certificates(&pem));
        tls = tls.root_certs(roots);
    } else if url.starts_with("https://") {
        tls = tls.root_certs(crate::commands::image::fetch::host_certificates()?);
    }
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT_TIME))
        .timeout_await_100(Some(CONTINUE_TIME))
        .max_redirects(0)
        .tls_config(tls.build())
        .build();
    Ok(config.into())
}

/// The certificates of a file in PEM.
pub(crate) fn certificates(pem: &[u8]) -> Vec<ureq::tls::Certificate<'static>> {
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    parse_pem(pem).filter_map(certificate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_by_tls_or_to_this_machine() {
        for (url, is_right) in [
            ("https://xen1:8443", true),
            ("https://", false),
            ("https:///x", false),
            ("http://127.0.0.1:8443", true),
            ("http://localhost", true),
            ("http://[::1]:8443", true),
            ("http://xen1:8443", false),
            ("http://127.0.0.1.example.org", false),
            ("http://127.0.0.1:1@example.org", false),
            ("http://localhost@example.org:80", false),
            ("xen1", false),
            ("ftp://xen1", false),
        ] {
            assert_eq!(is_safe(url).is_ok(), is_right, "{url}");
        }
    }

    #[test]
    fn commands_of_the_host_itself_are_refused() {
        let agent = Agent::config_builder().build().into();
        let (url, token) = ("https://xen1".to_owned(), "secret".to_owned());
        let remote = Remote { agent, url, token, ca: None };
        assert_eq!(
            remote.refusal("migrate-receive").as_deref(),
            Some(
                "migrate-receive works on the host itself only, since it is the other end of a connection by ssh: log in \
                 there, or leave out --host"
            )
        );
        assert_eq!(remote.refusal("list"), None);
        assert!(!format!("{remote:?}").contains("secret"));
    }
}
