"""The rules of each playable game in a few sentences, with its default parameters.

Players are "player 0" and "player 1", as in OpenSpiel. Not here: which games are playable
(`catalogue.py`).
"""

from __future__ import annotations

_CHESS = "Moves are in SAN, like Nf3. Upper-case letters in the FEN are White. Player 1 is White"
_HEX = "Player 0 (x) connects top and bottom, player 1 (o) left and right, with a chain of stones"

RULES: dict[str, str] = {
    "2048": (
        "Slide all tiles of a 4x4 grid in one direction; equal tiles that meet merge into their"
        " sum, which is your reward, and a new tile appears. The game ends when nothing can move"
        " or a 2048 tile is made."
    ),
    "amazons": (
        "10x10 board. On your turn move one of your amazons like a chess queen, then let it shoot"
        " an arrow like a queen; the square hit (#) is blocked for good. The three parts (from,"
        " to, shoot) are separate moves. Player 0 is X. Who cannot move loses."
    ),
    "antichess": (
        "Chess in which you win by losing all pieces or having no move; capturing is compulsory"
        f" and the king is an ordinary piece. {_CHESS}."
    ),
    "backgammon": (
        "Bring all your checkers home and bear them off first. Player 0 is x. A move"
        " uses both dice: 'from/to from/to', points counted from the mover's side."
    ),
    "banqi": (
        "Chinese dark chess on 4x8: flip a face-down piece (the first flip decides the colours),"
        " move one of yours to a neighbouring square, or capture a piece of equal or lower rank."
        " Who cannot move loses."
    ),
    "bargaining": (
        "Two players share a pool of books, hats and basketballs, each with private values per"
        " item. In turn, offer the items you keep for yourself or 'Agree' to the other's offer."
        " Without agreement in 10 turns both get 0."
    ),
    "battleship": (
        "First place your ships of length 2, 3, 3, 4 and 5 on a 10x10 grid, then shoot at the"
        " other's grid in turn, 50 shots each. Sunk ships count 1; you lose 1 per ship of yours"
        " that is sunk."
    ),
    "blackjack": (
        "Draw cards ('Hit') until you 'Stand'; the one nearer to 21 without going over wins. Face"
        " cards count 10, an ace 1 or 11. One dealer's card is hidden."
    ),
    "breakthrough": (
        "8x8 board. Move a pawn one square forward or diagonally forward; capture diagonally only."
        " Who first reaches the far side wins. Player 0 is b (black) and moves down from row 8."
    ),
    "catch": (
        "A ball (o) falls one row per move; steer the paddle (x) in the bottom row so that the"
        " ball lands on it."
    ),
    "checkers": (
        "Draughts on 8x8: men move diagonally forward, captures jump and are compulsory, kings"
        " also move backwards. Player 0 is o and moves up. Who cannot move loses."
    ),
    "chess": f"Chess. {_CHESS}.",
    "chinese_checkers": (
        "Move your pegs across the star to the opposite corner: one step ('4->15') or jumps over a"
        " neighbouring peg ('4=>17'). Player 0 owns the pegs marked 1."
    ),
    "cliff_walking": (
        "Walk from P to G on a grid. Each step costs 1; stepping on X (the cliff) costs 100 and"
        " ends the game, as do 100 steps."
    ),
    "clobber": (
        "On a board full of o and x, move one of your stones onto a neighbouring enemy stone,"
        " which is removed. Player 0 is o. Who cannot move loses."
    ),
    "coin_game": (
        "Walk on an 8x8 grid and collect coins for 20 moves. You know your own coin colour only."
        " Both players gain by coins of either player's colour; coins of the third colour cost."
    ),
    "connect_four": (
        "Drop a stone into one of 7 columns, 0 (left) to 6; it falls to the lowest free of 6 rows."
        " Four in a row, column or diagonal win. Player 0 is x: move 'x3' drops into column 3."
    ),
    "coordinated_mp": (
        "Matching pennies: player 0 picks Heads or Tails in secret, player 1 then picks (T or B in"
        " its view is chance and tells nothing). Player 0 wins if the picks match, else player 1."
    ),
    "crazyhouse": (
        "Chess in which captured pieces change sides and may be dropped on the board instead of a"
        f" move. {_CHESS}."
    ),
    "cribbage": (
        "Cribbage for two to 121 points. Each hand: choose two cards for the crib, then play cards"
        " in turn towards 31, then hands are counted."
    ),
    "cursor_go": (
        "Go on 19x19 with a cursor: move it Up, Down, Left or Right, then 'Place Stone', or"
        " 'Pass'. Player 0 is black (X). Komi 7.5."
    ),
    "dark_chess": (
        "Chess in which you see only your pieces and the squares they can move to ('?' is hidden)."
        f" Capturing the king wins; there is no check. {_CHESS}."
    ),
    "dark_hex": (
        f"3x3 Hex in the dark: {_HEX}. You see only your stones and those you ran into; a try on a"
        " taken cell shows it and you choose again. Below the board stand a counter and your tries"
        " as player,cell, cells numbered by rows from 0."
    ),
    "dark_hex_ir": (
        f"3x3 Hex in the dark: {_HEX}. You see only your stones and those you ran into; a try on a"
        " taken cell shows it and you choose again. Below the board stand a counter and your tries"
        " as player,cell, cells numbered by rows from 0."
    ),
    "deep_sea": (
        "Dive through a 5x5 grid from the top left, one row per move, LEFT or RIGHT. Going right"
        " costs a little; the treasure lies at the bottom right. Directions may be swapped in some"
        " cells, the same in every game."
    ),
    "dots_and_boxes": (
        "Draw lines between dots, h(orizontal) or v(ertical), row, column. Who draws the fourth"
        " side of a box owns it and moves again. Most of the 4 boxes win. In moves P1"
        " is player 0, P2 player 1."
    ),
    "einstein_wurfelt_nicht": (
        "5x5 board. A die decides which of your cubes may move (the nearest number if it is gone);"
        " cubes step straight or diagonally towards the far corner and capture what they land on"
        " (marked *). Reach that corner or capture all."
    ),
    "first_sealed_auction": (
        "You know what the good is worth to you (val). Both bid once, in secret; the higher bid"
        " wins and pays itself, a tie is drawn by lot. Your return is value minus bid."
    ),
    "gin_rummy": (
        "Draw the upcard or from the stock, discard, and build sets and runs. Knock when your"
        " deadwood is at most 10. Low deadwood wins."
    ),
    "go": "Go on 19x19, komi 7.5. Player 0 is black (X). Two passes end the game.",
    "go_fish": (
        "Ask the other player for a rank that you hold; you get all such cards or draw one. Four"
        " of a rank are a book; most books win. Cards are written as number of cards and a letter"
        " for the rank."
    ),
    "gomoku": "Five stones in a row win on a 15x15 board. A move is 'row,column' from 0.",
    "hanabi": (
        "A co-operative game: you see the other's cards, not yours. Play cards so that each colour"
        " runs from 1 to 5, give hints (they cost an information token), or discard (regains one)."
        " The score is the cards played; three mistakes end the game with 0."
    ),
    "havannah": (
        "Hexagonal board of side 8. Win by a ring around any cell, a bridge between two corners,"
        " or a fork between three sides. Player 0 is O."
    ),
    "hex": f"11x11 Hex: {_HEX}.",
    "hive": (
        "Place and move insects (Q bee, A ants, G hoppers, S spiders, B beetles, M, L, P) so that"
        " all stay connected; surround the enemy queen bee. Moves are in UHP notation, like"
        " 'wA1 bQ/'. Player 0 is white."
    ),
    "kriegspiel": (
        "Chess in which you see only your own pieces. Try a move; an umpire says whether it is"
        " legal, and you try again if not. Moves are like e2e4. Player 1 is White."
    ),
    "kuhn_poker": (
        "Three cards: 0 (low), 1, 2 (high). Each player antes 1 and gets one card. In turn 'Pass'"
        " or 'Bet' 1 more; after a bet, 'Bet' calls and 'Pass' folds. The higher card wins the"
        " pot. Your view shows your card, then the actions so far: p for pass, b for bet."
    ),
    "latent_ttt": (
        "Tic-tac-toe in which you learn the other's last mark only after your own next move; a"
        " mark on a taken cell is lost. Player 0 is x. Moves are (row,column). Below the board"
        " stand the moves you know as player,cell, cells numbered by rows from 0."
    ),
    "leduc_poker": (
        "Six cards: numbers 0-1, 2-3 and 4-5 are pairs of equal rank. One private card each, a"
        " betting round, one public card, a second round. A pair with the public card wins, else"
        " the higher rank. 'Call' also means check; raises are 2, then 4, at most two a round."
    ),
    "lewis_signaling": (
        "Player 0 sees a state (0 to 2) and sends one message; player 1 sees the message only and"
        " picks an action. Both get 1 if the action equals the state."
    ),
    "liars_dice": (
        "One die each. A bid 'count-face' claims that many dice show that face, 6 being wild. Bid"
        " higher or call 'Liar'; if the bid holds its bidder wins, else the caller. Your view"
        " shows your die, then the bids."
    ),
    "liars_dice_ir": (
        "One die each. A bid 'count-face' claims that many dice show that face, 6 being wild. Bid"
        " higher or call 'Liar'; if the bid holds its bidder wins, else the caller. Your view"
        " shows your die, then the last bids."
    ),
    "lines_of_action": (
        "8x8 board. A piece moves in a line by exactly as many squares as there are pieces on that"
        " line, over its own but not over enemy pieces; 'x' captures. Connect all your pieces to"
        " win."
    ),
    "maedn": (
        "Ludo for two: bring your four pieces around and home by the"
        " dice; a 6 brings a piece in, and landing on an enemy piece sends it back."
    ),
    "mancala": (
        "Sow the seeds of one of your six houses counter-clockwise, your store included. Ending in"
        " your store gives another move, ending in an empty house of yours captures the seeds"
        " opposite. Player 0 owns the bottom row. Most seeds win."
    ),
    "mnk": "Five marks in a row win on a 15x15 board. Player 0 is x. Moves are (row,column).",
    "morpion_solitaire": (
        "Add a point so that it completes a line of four points; a move names the four points"
        " [row,column] of the line. Lines in one direction share no point. Each line pays 1."
    ),
    "nim": (
        "Piles of 1, 3, 5 and 7. Take any number from one pile. Who takes the last piece loses."
        " The state shows '(player): sizes'."
    ),
    "nine_mens_morris": (
        "Place nine men on 24 points, then move them along lines; three in a line (a mill) remove"
        " an enemy man. With three men left you may jump. Two men or no move lose."
    ),
    "othello": (
        "8x8 board. A stone must enclose enemy stones in a line, which are turned over. Player 0"
        " is black (x). Most stones win."
    ),
    "oware": (
        "Sow the seeds of one of your six houses (letters) counter-clockwise; bringing enemy"
        " houses at the end to 2 or 3 seeds captures them. Most seeds win. The state shows the"
        " player to move | both scores | the houses A to F of player 0, then of player 1."
    ),
    "pentago": (
        "6x6 board of four 3x3 quadrants. Place a stone, then turn a quadrant: 'a1s' puts a stone"
        " on a1 and turns as the letter s at the edge shows. Five in a row win. Player 0 is O."
    ),
    "phantom_go": (
        "Go on 9x9 in which you see only your own stones; a try on a taken point tells you and you"
        " choose again. Player 0 is black. Komi 7.5."
    ),
    "phantom_ttt": (
        "Tic-tac-toe in which you see only your own marks and those you ran into; a try on a taken"
        " cell shows it and you choose again. Player 0 is x. Moves are (row,column). Below the"
        " board stand your tries as player,cell, cells numbered by rows from 0."
    ),
    "phantom_ttt_ir": (
        "Tic-tac-toe in which you see only your own marks and those you ran into; a try on a taken"
        " cell shows it and you choose again. Player 0 is x. Moves are (row,column). Below the"
        " board stand your tries as player,cell, cells numbered by rows from 0."
    ),
    "pig": (
        "Roll a die as often as you like and add up; a 1 loses the turn's total, 'stop' adds it to"
        " your score. First to 100 wins."
    ),
    "quoridor": (
        "9x9 board. Step your pawn to the far side or place a wall of length 2 ('e3v' or 'e3h')"
        " that must leave both a way. First across wins."
    ),
    "rbc": (
        "Reconnaissance blind chess: each turn first sense a 3x3 area, then move without seeing"
        " the other's pieces. Capturing the king wins. Player 1 is White."
    ),
    "repeated_leduc_poker": (
        "Two hands of Leduc poker: six cards, 0-1, 2-3 and 4-5 of equal rank. One private card"
        " each, betting, one public card, betting. A pair wins, else the higher rank. Winnings add"
        " up."
    ),
    "sheriff": (
        "Player 0 smuggles: it loads 0 to 3 illegal items, then offers bribes in 4 rounds. Player"
        " 1, the sheriff, says each round whether it would inspect; the last answer counts. An"
        " inspection costs the smuggler 2 per item, or the sheriff 3 if there are none."
    ),
    "shogi": (
        "Japanese chess on 9x9: captured pieces change sides and may be dropped. Moves are in USI:"
        " '7g7f', '+' promotes, 'P*5e' drops."
    ),
    "solitaire": (
        "Move cards, written target and source, to build foundations from ace to king by suit;"
        " columns go down in alternating colours. Cards on foundations and cards uncovered pay."
        " kEnd gives up; without another move it ends the game."
    ),
    "tic_tac_toe": (
        "Three in a row on a 3x3 board win. Player 0 is x and moves first. Moves are (row,column),"
        " both from 0: x(0,2) is the top right cell."
    ),
    "tiny_bridge_2p": (
        "Eight cards: J, Q, K, A of hearts (H) and spades (S), two each. Partners bid in turn for"
        " the contract; both get the score of the last bid, given all cards. Your view shows your"
        " cards, then the bids."
    ),
    "tiny_hanabi": (
        "Each player sees one private card (d1 or d2). Player 0 acts, player 1 sees the action and"
        " acts; both get the same pay, which depends on cards and actions."
    ),
    "trade_comm": (
        "Each player has one private item of 10. Each utters one word, then both propose a trade"
        " 'Trade mine:yours'. Both get 1 if the proposals fit together and each gives what it has."
    ),
    "twixt": (
        "8x8 board. Place a peg; pegs a knight's move apart are linked unless a link is in the"
        " way. Player 0 (x) links top and bottom, player 1 (o) left and right."
    ),
    "ultimate_tic_tac_toe": (
        "Nine tic-tac-toe boards in a 3x3 grid, numbered 0 to 8. The cell you choose decides the"
        " board the other must play on. Three boards in a row win. Player 0 is x."
    ),
    "universal_poker": (
        "No-limit poker for two with one private and one public card of a 24-card deck (2 to 7);"
        " stacks 1200, blinds 100. 'Bet' bets the pot. Two betting rounds; a pair with the public"
        " card wins, else the higher card."
    ),
    "xiangqi": (
        "Chinese chess on 9x10. Moves are piece(row,column)-(row,column). Checkmate or stalemate"
        " the other."
    ),
    "y": (
        "Triangular board of side 19. A chain of stones that touches all three sides wins. Player"
        " 0 is O."
    ),
    "yacht": (
        "Roll five dice, reroll chosen ones up to twice, then score one category; each category"
        " once. The higher total wins."
    ),
}
