//! As little HTTP as a load needs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

/// An answer that takes longer is a failure of the run.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Http {
    stream: BufReader<TcpStream>,
    token: String,
}

impl Http {
    pub(super) fn connect(address: &str, token: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("no {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), token: token.to_owned() })
    }

    /// Sends a request.
    pub(super) fn send(&mut self, method: &str, path: &str, body: &str) -> Result<()> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        Ok(self.stream.get_mut().write_all(head.as_bytes())?)
    }

    /// The head of an answer: its status and the length of its body, if that is known.
    pub(super) fn head(&mut self) -> Result<(u16, Option<usize>)> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|it| it.parse().ok());
        let status = status.with_context(|| format!("not HTTP: {line:?}"))?;
        let mut length = None;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = Some(value.parse()?);
                }
                Some(_) => {}
                None if line.trim_end().is_empty() => return Ok((status, length)),
                None => bail!("not HTTP: {line:?}"),
            }
        }
    }

    /// A request that is done, and the body of its answer.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<Vec<u8>> {
        self.send(method, path, body)?;
        let (status, length) = self.head()?;
        let mut body = vec![0; length.context("an answer without a length")?];
        self.stream.read_exact(&mut body)?;
        let text = String::from_utf8_lossy(&body[..body.len().min(300)]);
        ensure!(status == 200, "{method} {path}: {status} {text}");
        Ok(body)
    }

    pub(super) fn into_stream(self) -> BufReader<TcpStream> {
        self.stream
    }
}
