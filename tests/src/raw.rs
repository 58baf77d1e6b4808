//! Messages of the contract as bytes, which may be invalid.

use crate::{Kennel, must};
use kennel_client::{Address, Credentials, connect_with};
use prost::bytes::{Buf as _, BufMut as _};
use tonic::{
    Request, Status, client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// Makes one call, with a message and an answer as bytes.
pub async fn call(kennel: &Kennel, path: &str, message: Vec<u8>) -> Result<Vec<u8>, Status> {
    let address: Address = must("an address", kennel.address().parse());
    let connection = must(
        "connect",
        connect_with(&address, &Credentials::default()).await,
    );
    let mut grpc = client::Grpc::new(connection.channel());
    must("ready", grpc.ready().await.map_err(|e| e.to_string()));
    let path = path.parse().expect("a path");
    let answer = grpc.unary(Request::new(message), path, Raw).await?;
    Ok(answer.into_inner())
}

/// Codec that passes bytes unchanged.
#[derive(Clone, Copy, Default)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; buf.remaining()];
        buf.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}
