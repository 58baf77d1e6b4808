//! Writes to the standard input of an attempt, each byte once, across the loss of any server.

use crate::{Connection, Failure};
use bytes::Bytes;
use kennel_proto::pb;
use tonic::Status;
use ulid::Ulid;

/// Writer of one attempt's input, from one offset on.
#[derive(Debug)]
pub struct InputWriter {
    connection: Connection,
    run_id: String,
    attempt: u32,
    offset: u64,
}

impl InputWriter {
    /// Begins at the end of what was accepted, of this attempt or of the present one. Of two writers at the same offset
    /// one is refused with `INPUT_OFFSET_MISMATCH`.
    pub async fn begin(
        connection: &Connection,
        run_id: &str,
        attempt: Option<u32>,
    ) -> Result<Self, Failure> {
        let mut writer = Self {
            connection: connection.clone(),
            run_id: run_id.to_owned(),
            attempt: 0,
            offset: 0,
        };
        let status = writer.status().await?;
        let Some(accepted) = status.accepted_offset else {
            let message = format!("how far the input of run {run_id} has come is not known");
            return Err(Status::failed_precondition(message).into());
        };
        writer.attempt = attempt.unwrap_or(status.attempt);
        writer.offset = accepted;
        Ok(writer)
    }

    /// Number of the attempt.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Number of bytes of the input that were accepted.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Continues so many bytes before: what is written there must be the same bytes, and is not written again.
    pub fn go_back(&mut self, bytes: u64) {
        self.offset -= bytes;
    }

    /// Returns how the input stands.
    pub async fn status(&self) -> Result<pb::InputStatus, Failure> {
        let run_id = self.run_id.clone();
        let request = pb::GetInputStatusRequest { run_id };
        present(self.connection.call(request).await?.input)
    }

    /// Writes bytes, at most as many as a request has room for; all were accepted when this returns.
    pub async fn write(&mut self, data: Bytes) -> Result<pb::InputStatus, Failure> {
        let bytes = data.len() as u64;
        let request = pb::WriteInputRequest {
            run_id: self.run_id.clone(),
            data,
            offset: Some(self.offset),
            // The offset alone would suffice for a whole repeat; this one continues where a server has died midway.
            write_id: Ulid::generate().to_string(),
            expected_attempt: Some(self.attempt),
            if_awaiting: None,
        };
        let response = self.connection.call(request).await?;
        self.offset += bytes;
        present(response.input)
    }

    /// Closes the input behind the last byte.
    pub async fn close(&self) -> Result<pb::InputStatus, Failure> {
        let request = pb::CloseInputRequest {
            run_id: self.run_id.clone(),
            offset: Some(self.offset),
            expected_attempt: Some(self.attempt),
        };
        present(self.connection.call(request).await?.input)
    }
}

fn present(input: Option<pb::InputStatus>) -> Result<pb::InputStatus, Failure> {
    input.ok_or_else(|| Status::internal("the answer says nothing about the input").into())
}
