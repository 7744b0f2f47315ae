//! A server that only answers: what an answer of so many bytes costs without anything behind it. For `cargo xtask bench api`.

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;

fn main() -> Result<()> {
    let bytes: usize = std::env::args().nth(1).context("bytes")?.parse()?;
    let body = Bytes::from(vec![b' '; bytes]);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async move {
        let answer = move || async move { ([(header::CONTENT_TYPE, "application/json")], body) };
        let router: Router = Router::new().route("/", get(answer));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("http://{}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            let service = TowerToHyperService::new(router.clone());
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    })
}
