"""What is known of teams in memory is asked with every request, and costs no more with more people."""

from collections.abc import Iterator

from simpletuner_fleet.core.people.teams import Membership, Team, TeamRole
from simpletuner_fleet.engine.memory.organisation import Organisation


class Crowd(dict[str, Membership]):
    """Members who are not gone through one by one."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("somebody goes through all members")


def test_the_teams_of_one_person_are_found_without_a_look_at_all_others() -> None:
    people = Crowd({f"u_{number}": Membership(TeamRole.MEMBER, 1.0) for number in range(1_000)})
    everybody = Team(id="tm_all", name="all", created_at=1.0, members=people)
    few = Team(id="tm_few", name="few", created_at=1.0, members={"u_7": Membership(TeamRole.LEAD, 1.0)})
    organisation = Organisation(teams={team.id: team for team in (everybody, few)})
    for ids, teams in ((("t_1", "u_7"), {"tm_all", "tm_few"}), (("u_8", ""), {"tm_all"}), (("t_2",), set())):
        assert organisation.visibility_scope(ids, above=False).teams == teams
