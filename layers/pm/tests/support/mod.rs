//! A client of an NBD server, as little of one as these tests need.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const ZEROES: u16 = 6;
pub const FUA: u16 = 1;

pub struct Client {
    pub stream: UnixStream,
    pub len: u64,
    pub flags: u16,
    cookie: u64,
}

impl Client {
    /// Connects, and asks for the export without a name.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // The fixed new style, no zeros; then the name, which is empty.
        stream.write_all(
            &[&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat(),
        )?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let len = u64::from_be_bytes(export[..8].try_into().unwrap());
        Ok(Client { stream, len, flags: u16::from_be_bytes([export[8], export[9]]), cookie: 0 })
    }

    pub fn header(&mut self, kind: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
        self.cookie += 1;
        let parts: [&[u8]; 6] = [
            &0x2560_9513u32.to_be_bytes(),
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &self.cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &len.to_be_bytes(),
        ];
        parts.concat()
    }

    /// The error that the server tells.
    pub fn answer(&mut self) -> io::Result<u32> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        assert_eq!(reply[8..], self.cookie.to_be_bytes());
        Ok(u32::from_be_bytes(reply[4..8].try_into().unwrap()))
    }

    /// A request without bytes, and its error.
    pub fn ask(&mut self, kind: u16, flags: u16, offset: u64, len: u32) -> io::Result<u32> {
        let header = self.header(kind, flags, offset, len);
        self.stream.write_all(&header)?;
        self.answer()
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8], flags: u16) -> io::Result<u32> {
        let header = self.header(WRITE, flags, offset, bytes.len() as u32);
        self.stream.write_all(&[&header, bytes].concat())?;
        self.answer()
    }

    pub fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let error = self.ask(READ, 0, offset, len as u32)?;
        assert_eq!(error, 0);
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
