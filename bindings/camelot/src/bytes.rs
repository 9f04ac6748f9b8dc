//! Messages as they are: the stubs make them, and read them.

use bytes::{Buf, BufMut};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Takes and gives bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct AsTheyAre;

impl Codec for AsTheyAre {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = AsTheyAre;
    type Decoder = AsTheyAre;

    fn encoder(&mut self) -> AsTheyAre {
        AsTheyAre
    }

    fn decoder(&mut self) -> AsTheyAre {
        AsTheyAre
    }
}

impl Encoder for AsTheyAre {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for AsTheyAre {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; from.remaining()];
        from.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}
