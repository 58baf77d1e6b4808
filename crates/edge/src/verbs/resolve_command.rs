//! Which file a command is, and where it is searched.

use super::{
    Api, Context, Fault, How, Verb, Waits,
    spawn::{Call, hold, parse, permit},
};
use crate::pb;
use kennel_lifecycle::Violation;
use kennel_supervisor::SearchedFile;

impl Verb for pb::ResolveCommandRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = Call;
    type Answer = pb::ResolveCommandResponse;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Call> {
        parse(self.spec, context, found)
    }

    async fn checked(
        at: &Api,
        context: &Context<'_>,
        call: &mut Call,
        found: &mut Vec<Violation>,
    ) -> Result<(), Fault> {
        hold(context, call, found)?;
        Ok(permit(at, &mut call.spawn, &call.caller)?)
    }

    async fn serve(at: Api, call: Call) -> Result<Self::Answer, Fault> {
        let search = at.supervisor.find_command(&call.spawn).await;
        let mut path = None;
        let searched = search.searched.into_iter().map(|(at, found)| {
            let at = at.display().to_string();
            let result = match found {
                SearchedFile::Executable => {
                    path = Some(at.clone());
                    pb::SearchResult::Found
                }
                SearchedFile::Absent => pb::SearchResult::Absent,
                SearchedFile::NotExecutable => pb::SearchResult::NotExecutable,
                SearchedFile::NoAnswer => pb::SearchResult::NoAnswer,
            };
            pb::SearchedPath {
                path: at,
                result: result.into(),
            }
        });
        let searched = searched.collect();
        let source = match path {
            Some(_) => pb::CommandSource::Path,
            None => pb::CommandSource::Unspecified,
        };
        Ok(pb::ResolveCommandResponse {
            source: source.into(),
            path,
            path_variable: search.path_variable,
            searched,
        })
    }
}
