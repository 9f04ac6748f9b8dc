//! A web server whose cache is warm after a restart, also after `kill -9`: pages are slow to make, and made once.
//! The cache is that of `lru.rs`.
//!
//! `cargo run --release -p caliburn --example http_cache -- STORE ADDRESS`, then for instance
//! `wrk -t2 -c16 -d10 http://127.0.0.1:8080/page/7`

#[path = "lru.rs"]
pub mod lru;

use caliburn::{Error, Objects};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Pages that are kept.
pub const MOST: usize = 500;
const LONGEST_REQUEST: usize = 8192;

/// What is slow to make.
fn make(path: &str) -> String {
    std::thread::sleep(Duration::from_millis(2));
    format!("<p>This is {path}, of {} letters.</p>\n", path.len())
}

/// The page of a path, and whether it was there.
fn page(cache: &Objects<lru::Cache>, path: &str) -> Result<(String, bool), Error> {
    if let Some(page) = lru::get(cache, path)? {
        return Ok((page, true));
    }
    let page = make(path);
    lru::put(cache, path, &page, MOST)?;
    Ok((page, false))
}

/// Answers the requests of a connection, until the other side closes it.
fn answer(cache: &Objects<lru::Cache>, mut client: TcpStream) -> io::Result<()> {
    // An answer is written whole.
    client.set_nodelay(true)?;
    let (mut buffer, mut filled) = (vec![0; LONGEST_REQUEST], 0);
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&buffer[..filled]) {
            Ok(httparse::Status::Complete(len)) => {
                let answer = match (request.method, request.path) {
                    (Some("GET"), Some(path)) => page(cache, path).map_or_else(
                        |error| response("500 Internal Server Error", "", &format!("{error}\n")),
                        |(page, hit)| response("200 OK", if hit { "hit" } else { "miss" }, &page),
                    ),
                    _ => response("405 Method Not Allowed", "", "only GET\n"),
                };
                client.write_all(answer.as_bytes())?;
                buffer.copy_within(len..filled, 0);
                filled -= len;
            }
            Ok(httparse::Status::Partial) if filled < buffer.len() => {
                match client.read(&mut buffer[filled..])? {
                    0 => return Ok(()),
                    read => filled += read,
                }
            }
            _ => return client.write_all(response("400 Bad Request", "", "what is this?\n").as_bytes()),
        }
    }
}

fn response(status: &str, cache: &str, body: &str) -> String {
    let len = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html\r\nX-Cache: {cache}\r\nContent-Length: {len}\r\n\r\n{body}"
    )
}

/// Answers whoever connects.
pub fn serve(cache: &Objects<lru::Cache>, listener: &TcpListener) -> io::Result<()> {
    for client in listener.incoming() {
        let (cache, client) = (cache.clone(), client?);
        // Whoever goes away in the midst of an answer is no concern of the others.
        std::thread::spawn(move || drop(answer(&cache, client)));
    }
    Ok(())
}

/// Opens the cache.
pub fn open(store: &std::path::Path) -> Result<Objects<lru::Cache>, Error> {
    Objects::create(store)
}

#[allow(dead_code, reason = "the tests call what is above")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, address] = &arguments[..] else { return Err("usage: http_cache STORE ADDRESS".into()) };
    let cache = open(store.as_ref())?;
    let listener = TcpListener::bind(address)?;
    println!("{} pages are cached; listening at {}", lru::keys(&cache).len(), listener.local_addr()?);
    Ok(serve(&cache, &listener)?)
}
